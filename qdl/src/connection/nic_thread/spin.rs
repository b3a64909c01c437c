//! How a thread waits that has found nothing to do: it looks again
//! at once, then lets others run between its looks, then sleeps.

use std::{hint, thread};

/// After how long a thread that spins lets others run, in nanoseconds, where nothing else is said.
///
/// Shorter than a round trip over loopback, so that an answer that is on its way is met by a thread
/// that looks; and where another thread wants the core, hardly longer than the switch to it.
pub const DEFAULT_YIELD_AFTER_NS: u64 = 2_000;

/// How long a thread looks for work before it sleeps, and how it does so.
///
/// A thread that spins keeps its core until the scheduler takes it away, some milliseconds later.
/// Where as many threads spin as there are cores, whoever has something to do (LoadGen's issue
/// thread, the peer on the same machine) waits for that. `sched_yield` hands the core over at once;
/// where nobody wants it, the call returns in a fraction of a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spin {
    /// Idle for so long, the thread lets others run between two looks, ns; `u64::MAX` never does.
    pub yield_after_ns: u64,
    /// Idle for so long, it sleeps, ns; `u64::MAX` never does.
    pub sleep_after_ns: u64,
}

/// What a thread does that has found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Look again at once.
    Look,
    /// Let others run, then look again.
    Yield,
    /// Sleep until something comes.
    Sleep,
}

impl Spin {
    /// Sleeps after so many nanoseconds, and lets others run after [`DEFAULT_YIELD_AFTER_NS`].
    pub const fn new(sleep_after_ns: u64) -> Self {
        Spin {
            yield_after_ns: DEFAULT_YIELD_AFTER_NS,
            sleep_after_ns,
        }
    }

    /// What a thread does that has been idle for so long.
    pub const fn wait(&self, idle_ns: u64) -> Wait {
        if idle_ns >= self.sleep_after_ns && self.sleep_after_ns != u64::MAX {
            Wait::Sleep
        } else if idle_ns >= self.yield_after_ns && self.yield_after_ns != u64::MAX {
            Wait::Yield
        } else {
            Wait::Look
        }
    }
}

impl Wait {
    /// Does what there is to do before the next look; `false` where the thread is to sleep.
    pub fn pause(self) -> bool {
        match self {
            Wait::Look => hint::spin_loop(),
            Wait::Yield => thread::yield_now(),
            Wait::Sleep => return false,
        }
        true
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_looks_then_yields_then_sleeps() {
        let spin = Spin::new(50_000);
        assert_eq!(spin.wait(0), Wait::Look);
        assert_eq!(spin.wait(DEFAULT_YIELD_AFTER_NS - 1), Wait::Look);
        assert_eq!(spin.wait(DEFAULT_YIELD_AFTER_NS), Wait::Yield);
        assert_eq!(spin.wait(49_999), Wait::Yield);
        assert_eq!(spin.wait(50_000), Wait::Sleep);
    }

    #[test]
    fn what_is_set_off_never_happens() {
        let poll = Spin::new(u64::MAX);
        assert_eq!(poll.wait(u64::MAX), Wait::Yield);
        let alone = Spin {
            yield_after_ns: u64::MAX,
            ..poll
        };
        assert_eq!(alone.wait(u64::MAX), Wait::Look);
        let event = Spin::new(0);
        assert_eq!(event.wait(0), Wait::Sleep);
    }
}
