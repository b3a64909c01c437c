//! What threads record while a run goes on: a NIC thread its samples, and what a run's
//! [timeline](record::timeline) is made of.
//!
//! A tick is a tenth of a second for the first two minutes. A run that lasts longer has ticks of a
//! second, then of ten, and so on: what was gathered is added up, and there are never more than
//! [`MOST_TICKS`].
//!
//! | what | who gathers it |
//! | --- | --- |
//! | [`Recorder`] | a NIC thread: histograms and counts of its samples |
//! | [`LatencyTicks`] | the thread that records samples, one for each: plain additions |
//! | [`Grown`] | whoever reads counters now and then; what came between two came evenly |
//! | [`ThreadTicks`] | the same of a process's threads |
//! | [`EngineTicks`] | an accelerator, of its engines |

mod engines;
mod grown;
mod latency;
mod recorder;
mod threads;

pub use engines::{EngineReading, EngineTicks};
pub use grown::Grown;
pub use latency::LatencyTicks;
pub use recorder::Recorder;
pub use threads::{ThreadReading, ThreadTicks};

/// Length of the first ticks, in nanoseconds.
pub const FIRST_TICK_NS: u64 = 100_000_000;
/// So many are kept; with more, each ten become one.
pub const MOST_TICKS: usize = 1_200;
/// How many become one.
const COARSER: u64 = 10;

/// Length of the ticks of a run that has lasted so long, in nanoseconds.
pub fn tick_ns(lasted_ns: u64) -> u64 {
    let mut tick = FIRST_TICK_NS;
    while lasted_ns / tick >= MOST_TICKS as u64 {
        tick = tick.saturating_mul(COARSER);
    }
    tick
}

/// How many ticks of this length a run has that lasted so long: one at least.
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
