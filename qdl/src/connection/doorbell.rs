//! Who rings the doorbell of a connection: the thread that issues a sample, or the NIC thread in
//! its next turn.
//!
//! A doorbell costs what it costs here: a system call of one microsecond or of six, with the copy
//! of a payload in it or without, or a write to a device. The thread that issues samples has a
//! schedule to keep. So it looks at what ringing took it, and rests from it for a multiple of that:
//! most of its time is its own whatever the machine.
//!
//! While it rests, doorbells are left to the NIC thread, if that is awake, or to this thread's own
//! next time. That is worth it only where samples come closer together than it rests: a sample on a
//! quiet connection waits for nobody.

use std::cell::Cell;

/// A thread that has rung rests for so many times what it took: it spends a ninth of its time on
/// doorbells at most, while samples come close together.
const REST: u64 = 8;
/// So many samples must be expected while it rests for one to wait.
const COMPANY: u64 = 2;
/// Weight of the past against a new gap between two samples.
const GAPS: u64 = 16;
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
    /// How long it rests.
    rest_ns: u64,
    rests_until_ns: u64,
    /// When it last issued.
    issued_ns: u64,
    /// How far apart it issues, ns: smoothed.
    gap_ns: u64,
}

thread_local! {
    static OF_THIS_THREAD: Cell<Ringer> = const {
        Cell::new(Ringer {
            cost_ns: 0,
            rest_ns: 0,
            rests_until_ns: 0,
            issued_ns: 0,
            gap_ns: u64::MAX / 2,
        })
    };
}

impl Ringer {
    /// This thread issues now: whether the doorbell may wait for somebody else.
    pub fn may_wait(now_ns: u64) -> bool {
        let mut ringer = OF_THIS_THREAD.get();
        let may = ringer.issues(now_ns);
        OF_THIS_THREAD.set(ringer);
        may
    }

    fn issues(&mut self, now_ns: u64) -> bool {
        // A pause counts as one, however long: a burst behind it is soon known for what it is.
        let longest = (self.rest_ns * COMPANY).max(1);
        let gap = now_ns.saturating_sub(self.issued_ns).min(longest);
        self.issued_ns = now_ns;
        let past = self.gap_ns.min(longest);
        self.gap_ns = (past * (GAPS - 1) + gap).div_ceil(GAPS);
        now_ns < self.rests_until_ns && self.gap_ns * COMPANY <= self.rest_ns
    }

    /// This thread rang from `began_ns` to `ended_ns`.
    pub fn rang(began_ns: u64, ended_ns: u64, wait: DoorbellWait) {
        OF_THIS_THREAD.set(OF_THIS_THREAD.get().after(began_ns, ended_ns, wait));
    }

    fn after(self, began_ns: u64, ended_ns: u64, wait: DoorbellWait) -> Self {
        let took = ended_ns.saturating_sub(began_ns).max(1);
        let cost_ns = match self.cost_ns {
            0 => took,
            // Cheap again is believed at once: dear may have been the scheduler's doing.
            cost if took < cost => (cost + took) / 2,
            cost => cost + (took.min(cost * OUTLIER) - cost).div_ceil(8),
        };
        let rest_ns = match wait {
            DoorbellWait::ByCost => cost_ns * REST,
            DoorbellWait::Ns(ns) => ns,
        };
        Ringer {
            cost_ns,
            rest_ns,
            rests_until_ns: ended_ns + rest_ns,
            ..self
        }
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever ringing costs and however close together samples come, a thread spends at most
        /// a ninth of its time on it, or rings for samples that are far apart.
        #[test]
        fn most_of_a_threads_time_is_its_own(
            cost in 20u64..20_000,
            gap in 1u64..40_000,
            jitter in prop::collection::vec(0u64..1_000, 500..800),
        ) {
            let (mut ringer, mut now, mut spent) = (Ringer::default(), 1_000_000, 0);
            for j in &jitter {
                now += gap * j / 500;
                if !ringer.issues(now) {
                    ringer = ringer.after(now, now + cost, DoorbellWait::ByCost);
                    now += cost;
                    spent += cost;
                }
            }
            // Before it knows what comes, it rings for each.
            let learning = 100 * cost;
            let share = if 4 * gap < REST * cost { REST + 1 } else { REST / COMPANY / 2 };
            prop_assert!(spent <= (now - 1_000_000) / share + learning, "{spent} of {now}");
        }

        /// Samples that are far apart wait for nobody, whatever was before.
        #[test]
        fn a_sample_on_a_quiet_connection_waits_for_nobody(
            cost in 20u64..20_000,
            burst in 0usize..200,
            far in 1u64..20,
        ) {
            let (mut ringer, mut now) = (Ringer::default(), 1_000_000);
            let step = |ringer: &mut Ringer, now: &mut u64, gap: u64| {
                *now += gap;
                let waits = ringer.issues(*now);
                if !waits {
                    *ringer = ringer.after(*now, *now + cost, DoorbellWait::ByCost);
                    *now += cost;
                }
                waits
            };
            (0..burst).for_each(|_| _ = step(&mut ringer, &mut now, 10));
            for _ in 0..20 {
                prop_assert!(!step(&mut ringer, &mut now, far * REST * cost));
            }
        }

        /// And those that come close together are rung for together, soon.
        #[test]
        fn a_burst_is_soon_known(cost in 200u64..20_000) {
            let (mut ringer, mut now, mut rung) = (Ringer::default(), 1_000_000, 0);
            for _ in 0..200 {
                now += cost / 10;
                if !ringer.issues(now) {
                    ringer = ringer.after(now, now + cost, DoorbellWait::ByCost);
                    now += cost;
                    rung += 1;
                }
            }
            prop_assert!(rung < 50, "{rung} of 200");
        }
    }

    #[test]
    fn a_lost_core_is_not_what_ringing_costs_and_cheap_is_believed_at_once() {
        let mut ringer = Ringer::default().after(0, 1_000, DoorbellWait::ByCost);
        ringer = ringer.after(0, 3_000_000, DoorbellWait::ByCost);
        assert_eq!(ringer.cost_ns, 1_375);
        let late = Ringer::default().after(0, 3_000_000, DoorbellWait::ByCost);
        let soon = (0..8).fold(late, |r, _| r.after(0, 1_000, DoorbellWait::ByCost));
        assert!(soon.cost_ns < 15_000, "{soon:?}");
    }

    #[test]
    fn who_says_how_long_is_heard() {
        let close = |wait| {
            let mut ringer = Ringer::default();
            let mut now = 0;
            for _ in 0..100 {
                now += 10;
                ringer.issues(now);
                ringer = ringer.after(now, now, wait);
            }
            (ringer, now)
        };
        let (mut never, now) = close(DoorbellWait::Ns(0));
        assert!(!never.issues(now));
        let (mut long, now) = close(DoorbellWait::Ns(20_000));
        assert!(long.issues(now + 19_999 / 2));
        assert!(!long.issues(now + 20_000));
    }
}
