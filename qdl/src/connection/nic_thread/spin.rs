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

/// How much longer than a vain `sched_yield` a thread looks on before the next: what is nobody's
/// gain takes a fifth of its looks, and who comes for the core waits for four such calls at most.
const LOOKS_FOR_A_YIELD: u64 = 4;

/// When a thread that lets others run does so again: at once where somebody wanted the core, later
/// where the call was in vain, by what that took.
#[derive(Debug)]
pub(super) struct Yields {
    due_ns: u64,
    /// The quickest so far, ns: nobody wanted the core.
    vain_ns: u64,
}

impl Yields {
    pub const fn new() -> Self {
        Yields {
            due_ns: 0,
            vain_ns: u64::MAX,
        }
    }

    /// What a thread does now that would let others run.
    pub const fn wait(&self, wait: Wait, now_ns: u64) -> Wait {
        match wait {
            Wait::Yield if now_ns < self.due_ns => Wait::Look,
            wait => wait,
        }
    }

    /// It let others run.
    pub fn ran(&mut self, before_ns: u64, now_ns: u64) {
        let took = now_ns.saturating_sub(before_ns);
        self.vain_ns = self.vain_ns.min(took);
        // One that handed the core over took two switches more.
        let was_vain = took <= self.vain_ns.saturating_mul(2);
        self.due_ns = match was_vain {
            true => now_ns.saturating_add(took.saturating_mul(LOOKS_FOR_A_YIELD)),
            false => now_ns,
        };
    }
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

    /// It was given a core to look for work with.
    pub const fn never_sleeps(&self) -> bool {
        self.sleep_after_ns == u64::MAX
    }

    /// What a thread does that has been idle for so long.
    pub const fn wait(&self, idle_ns: u64) -> Wait {
        if idle_ns >= self.sleep_after_ns && !self.never_sleeps() {
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
    fn a_yield_in_vain_puts_off_the_next() {
        let mut yields = Yields::new();
        assert_eq!(yields.wait(Wait::Yield, 0), Wait::Yield);
        yields.ran(1_000, 1_400);
        assert_eq!(yields.wait(Wait::Yield, 1_400), Wait::Look);
        assert_eq!(yields.wait(Wait::Sleep, 1_400), Wait::Sleep);
        assert_eq!(yields.wait(Wait::Look, 9_000), Wait::Look);
        assert_eq!(yields.wait(Wait::Yield, 2_999), Wait::Look);
        assert_eq!(yields.wait(Wait::Yield, 3_000), Wait::Yield);
        // Another had the core: perhaps it wants it again.
        yields.ran(3_000, 9_000);
        assert_eq!(yields.wait(Wait::Yield, 9_000), Wait::Yield);
        yields.ran(9_000, 9_800);
        assert_eq!(yields.wait(Wait::Yield, 9_801), Wait::Look);
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
