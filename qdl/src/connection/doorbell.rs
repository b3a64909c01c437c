//! Who rings the doorbell of a connection: the thread that issues a sample, or the NIC thread in
//! its next turn.
//!
//! A doorbell costs what it costs here: a system call of one microsecond or of six, with the copy
//! of a payload in it or without, or a write to a device. The thread that issues samples has a
//! schedule to keep. So it looks at what ringing took it, and rests from it for a multiple of that:
//! most of its time is its own whatever the machine, and a sample on a quiet connection waits for
//! nobody, as by then the thread has rested.
//!
//! A doorbell is left to a NIC thread only where that one comes by: it is awake, and has looked
//! within the time that ringing is worth waiting for. Where it sleeps, or the scheduler has taken
//! its core away, whoever issues rings, rested or not.

use std::cell::Cell;

/// A thread that has rung rests for so many times what it took: it spends a fifth of its time on
/// doorbells at most.
const REST: u64 = 4;
/// What ringing took counts for so many times the usual at most: a thread that lost its core in the
/// middle of it has not learned what ringing costs.
const OUTLIER: u64 = 4;

/// How long a thread that issues rests from ringing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellWait {
    /// By what ringing costs it here.
    #[default]
    ByCost,
    /// So many nanoseconds, as somebody has set it; after 0 it rings for each.
    Ns(u64),
}

/// What ringing costs a thread, and until when it rests from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ringer {
    /// What ringing takes, ns; 0 before the first time.
    cost_ns: u64,
    rests_until_ns: u64,
}

thread_local! {
    static OF_THIS_THREAD: Cell<Ringer> = const {
        Cell::new(Ringer { cost_ns: 0, rests_until_ns: 0 })
    };
}

impl Ringer {
    /// This thread's.
    pub fn of_this_thread() -> Self {
        OF_THIS_THREAD.get()
    }

    /// Whether it rests, so that a doorbell may wait for somebody else.
    pub fn rests(&self, now_ns: u64) -> bool {
        now_ns < self.rests_until_ns
    }

    /// How long a doorbell is worth waiting for.
    pub fn patience_ns(&self) -> u64 {
        self.cost_ns * REST
    }

    /// This thread rang from `began_ns` to `ended_ns`.
    pub fn rang(began_ns: u64, ended_ns: u64, wait: DoorbellWait) {
        OF_THIS_THREAD.set(Self::of_this_thread().after(began_ns, ended_ns, wait));
    }

    fn after(self, began_ns: u64, ended_ns: u64, wait: DoorbellWait) -> Self {
        let took = ended_ns.saturating_sub(began_ns).max(1);
        let cost_ns = match self.cost_ns {
            0 => took,
            // Cheap again is believed at once: dear may have been the scheduler's doing.
            cost if took < cost => (cost + took) / 2,
            cost => cost + (took.min(cost * OUTLIER) - cost).div_ceil(8),
        };
        let rest = match wait {
            DoorbellWait::ByCost => cost_ns * REST,
            DoorbellWait::Ns(ns) => ns,
        };
        Ringer {
            cost_ns,
            rests_until_ns: ended_ns + rest,
        }
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever ringing costs and however samples come, a thread that rings where it does not
        /// rest spends at most a fifth of its time on it, but for what the scheduler takes.
        #[test]
        fn most_of_a_threads_time_is_its_own(
            cost in 20u64..20_000,
            gaps in prop::collection::vec(0u64..20_000, 50..400),
        ) {
            let (mut ringer, mut now, mut spent) = (Ringer::default(), 1_000_000, 0);
            let begin = now;
            for gap in gaps {
                now += gap;
                if !ringer.rests(now) {
                    ringer = ringer.after(now, now + cost, DoorbellWait::ByCost);
                    now += cost;
                    spent += cost;
                }
            }
            prop_assert!(spent <= (now - begin) / (REST + 1) + cost, "{spent} of {}", now - begin);
        }

        /// One that is as quick as samples come apart waits for nobody.
        #[test]
        fn a_sample_after_a_pause_finds_it_rested(cost in 20u64..20_000, after in 0u64..20_000) {
            let ringer = Ringer::default().after(0, cost, DoorbellWait::ByCost);
            let now = cost + REST * cost + after;
            prop_assert!(!ringer.rests(now));
        }
    }

    #[test]
    fn a_lost_core_is_not_what_ringing_costs_and_cheap_is_believed_at_once() {
        let mut ringer = Ringer::default().after(0, 1_000, DoorbellWait::ByCost);
        ringer = ringer.after(0, 3_000_000, DoorbellWait::ByCost);
        assert_eq!(ringer.patience_ns(), 4 * 1_375);
        let late = Ringer::default().after(0, 3_000_000, DoorbellWait::ByCost);
        let soon = (0..8).fold(late, |r, _| r.after(0, 1_000, DoorbellWait::ByCost));
        assert!(soon.patience_ns() < 4 * 15_000, "{soon:?}");
    }

    #[test]
    fn who_says_how_long_is_heard() {
        let never = Ringer::default().after(0, 1_000, DoorbellWait::Ns(0));
        assert!(!never.rests(1_000));
        let long = Ringer::default().after(0, 1_000, DoorbellWait::Ns(20_000));
        assert!(long.rests(20_999) && !long.rests(21_000));
    }
}
