//! Recorders of threads during a run: a NIC thread's samples, and the parts of a run's
//! [timeline](record::timeline).
//!
//! A tick is 100 ms long in a run of up to two minutes. In a longer run every ten ticks are merged
//! into ticks of 1 s, then 10 s, and so on. So there are never more than [`MOST_TICKS`].
//!
//! | recorder | thread and data |
//! | --- | --- |
//! | [`Recorder`] | a NIC thread: histograms and counts of its samples |
//! | [`LatencyTicks`] | the thread that records samples: one plain addition per sample |
//! | [`Grown`] | a thread that reads counters: growth between readings counts as even |
//! | [`ThreadTicks`] | a thread that reads the times of the process's threads |
//! | [`EngineTicks`] | an accelerator's thread that reads its engines' counts |

mod engines;
mod grown;
mod latency;
mod recorder;
mod threads;

pub(crate) use engines::{EngineReading, EngineTicks};
pub use grown::Grown;
pub use latency::LatencyTicks;
pub use recorder::Recorder;
pub use threads::ThreadTicks;

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const FIRST_TICK_NS: u64 = 100_000_000;
/// Maximum number of ticks; a longer run merges every ten ticks into one.
pub(crate) const MOST_TICKS: usize = 1_200;
const COARSER: u64 = 10;

/// Returns the tick length, in nanoseconds, of a run of `lasted_ns`.
pub fn tick_ns(lasted_ns: u64) -> u64 {
    let mut tick = FIRST_TICK_NS;
    while lasted_ns / tick >= MOST_TICKS as u64 {
        tick = tick.saturating_mul(COARSER);
    }
    tick
}

/// Returns the number of ticks of length `tick_ns` in a run of `lasted_ns`: at least 1.
pub fn tick_count(lasted_ns: u64, tick_ns: u64) -> usize {
    usize::try_from(lasted_ns.div_ceil(tick_ns.max(1))).map_or(MOST_TICKS, |n| n.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_a_run_the_longer_its_ticks_and_never_too_many() {
        const S: u64 = 1_000_000_000;
        assert_eq!((tick_ns(0), tick_ns(119 * S)), (S / 10, S / 10));
        assert_eq!((tick_ns(120 * S), tick_ns(1_199 * S)), (S, S));
        assert_eq!(tick_ns(1_200 * S), 10 * S);
        for lasted in [1, S, 119 * S, 600 * S, 86_400 * S, u64::MAX] {
            assert!(
                tick_count(lasted, tick_ns(lasted)) <= MOST_TICKS,
                "{lasted}"
            );
        }
        assert_eq!((tick_count(0, S), tick_count(S + 1, S)), (1, 2));
    }
}
