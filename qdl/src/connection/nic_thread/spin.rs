//! How an idle thread waits: it polls again at once, then yields between polls, then sleeps.

use std::{hint, thread};

/// Default idle time after which a spinning thread yields, in nanoseconds.
///
/// This is shorter than a round trip over loopback, so the thread still polls when an answer comes.
/// It is hardly longer than a context switch to a second thread that needs the core.
pub(crate) const DEFAULT_YIELD_AFTER_NS: u64 = 2_000;

/// How long a thread polls before it sleeps, and when it yields.
///
/// A spinning thread keeps its core until the scheduler preempts it, some milliseconds later. Where
/// as many threads spin as there are cores, LoadGen's issue thread or a peer on the same machine
/// waits for a core. `sched_yield` releases the core at once; with no waiting thread it returns in
/// less than 1 us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spin {
    /// Idle time after which the thread yields between polls, in ns; `u64::MAX` for never.
    pub yield_after_ns: u64,
    /// Idle time after which the thread sleeps, in ns; `u64::MAX` for never.
    pub sleep_after_ns: u64,
}

/// Next action of an idle thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Poll again at once.
    Look,
    /// Yield the core, then poll again.
    Yield,
    /// Sleep until an event comes.
    Sleep,
}

impl Spin {
    /// A thread that yields after [`DEFAULT_YIELD_AFTER_NS`] and sleeps after `sleep_after_ns`.
    pub const fn new(sleep_after_ns: u64) -> Self {
        Spin {
            yield_after_ns: DEFAULT_YIELD_AFTER_NS,
            sleep_after_ns,
        }
    }

    /// Action of a thread that has been idle for `idle_ns`.
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
    /// Pauses before the next poll; false where the thread must sleep instead.
    pub fn pause(self) -> bool {
        match self {
            Wait::Look => hint::spin_loop(),
            Wait::Yield => thread::yield_now(),
            Wait::Sleep => return false,
        }
        true
    }
}

#[cfg(all(test, not(feature = "loom")))]
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
