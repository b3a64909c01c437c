//! Whether a thread that issues posts by itself, and who rings the doorbell: that thread, or the
//! NIC thread in its next turn.
//!
//! A doorbell costs what it costs here: a system call of one microsecond or of six, with the copy
//! of a payload in it or without, or a write to a device. The thread that issues samples has a
//! schedule to keep. So it looks at what ringing took it, and rests from it for a multiple of that:
//! most of its time is its own whatever the machine.
//!
//! While samples come closer together than that, they are in *company*: they are left to a NIC
//! thread ([`Ringer::has_time`], `dispatch::lane`), or posted with their doorbell left to it
//! ([`Ringer::may_wait`]). A sample on a quiet connection waits for nobody.

use std::cell::Cell;

use super::costs::PostingCosts;

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
    /// What ringing takes without its bytes, ns; 0 before the first time.
    call_ns: u64,
    /// And each KiB of them.
    kib_ns: u64,
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
            call_ns: 0,
            kib_ns: 0,
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
        let may = ringer.issues(now_ns, ringer.rest_ns) && now_ns < ringer.rests_until_ns;
        OF_THIS_THREAD.set(ringer);
        may
    }

    /// This thread issues so many bytes now: whether samples come so far apart that it has the time
    /// to post each. What that costs is what was measured here before it has posted any.
    pub fn has_time(now_ns: u64, bytes: u64) -> bool {
        let mut ringer = OF_THIS_THREAD.get();
        if ringer.call_ns == 0 {
            let here = PostingCosts::known();
            (ringer.call_ns, ringer.kib_ns) = (here.call_ns, here.kib_ns);
        }
        let company = ringer.issues(now_ns, REST.saturating_mul(ringer.takes_ns(bytes)));
        OF_THIS_THREAD.set(ringer);
        !company
    }

    /// What posting so many bytes takes this thread, ns.
    pub fn cost_ns(bytes: u64) -> u64 {
        OF_THIS_THREAD.get().takes_ns(bytes)
    }

    /// How long a thread rests that has spent so long, ns.
    pub fn rest_after(ns: u64) -> u64 {
        ns.saturating_mul(REST)
    }

    fn takes_ns(&self, bytes: u64) -> u64 {
        self.call_ns
            .saturating_add(bytes.saturating_mul(self.kib_ns) >> 10)
    }

    /// It issues now; true where others do within a rest so long.
    fn issues(&mut self, now_ns: u64, rest_ns: u64) -> bool {
        // A pause counts as one, however long: a burst behind it is soon known for what it is.
        let longest = rest_ns.saturating_mul(COMPANY).max(1);
        let gap = now_ns.saturating_sub(self.issued_ns).min(longest);
        self.issued_ns = now_ns;
        let past = self.gap_ns.min(longest);
        self.gap_ns = (past * (GAPS - 1) + gap).div_ceil(GAPS);
        self.gap_ns.saturating_mul(COMPANY) <= rest_ns
    }

    /// This thread rang from `began_ns` to `ended_ns`, for so many bytes.
    pub fn rang(began_ns: u64, ended_ns: u64, bytes: u64, wait: DoorbellWait) {
        OF_THIS_THREAD.set(OF_THIS_THREAD.get().after(began_ns, ended_ns, bytes, wait));
    }

    fn after(self, began_ns: u64, ended_ns: u64, bytes: u64, wait: DoorbellWait) -> Self {
        let took = ended_ns.saturating_sub(began_ns).max(1);
        let mut next = self;
        let copies = self.takes_ns(bytes) - self.call_ns;
        if copies > self.call_ns && self.call_ns > 0 {
            // Mostly the copy: that is what there was to learn.
            let kib = (took.saturating_sub(self.call_ns) << 10) / bytes.max(1);
            next.kib_ns = learned(self.kib_ns, kib.max(1));
        } else {
            next.call_ns = learned(self.call_ns, took.saturating_sub(copies).max(1));
        }
        next.rest_ns = match wait {
            DoorbellWait::ByCost => Self::rest_after(next.takes_ns(bytes)),
            DoorbellWait::Ns(ns) => ns,
        };
        next.rests_until_ns = ended_ns + next.rest_ns;
        next
    }
}

/// What something costs that was thought to cost `usual`, and took so long now.
pub(crate) fn learned(usual: u64, took: u64) -> u64 {
    match usual {
        0 => took,
        // Cheap again is believed at once: dear may have been the scheduler's doing.
        cost if took < cost => (cost + took) / 2,
        cost => cost + (took.min(cost * OUTLIER) - cost).div_ceil(8),
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether its doorbell may wait.
    fn may(ringer: &mut Ringer, now: u64) -> bool {
        ringer.issues(now, ringer.rest_ns) && now < ringer.rests_until_ns
    }

    proptest! {
        /// What posting costs is soon known, the call and the copy, whatever was thought before.
        #[test]
        fn short_ones_teach_the_call_and_long_ones_the_copy(
            (call, kib) in (50u64..20_000, 20u64..500),
            (thought_call, thought_kib) in (50u64..20_000, 20u64..500),
        ) {
            let mut ringer = Ringer {
                call_ns: thought_call,
                kib_ns: thought_kib,
                ..Ringer::default()
            };
            let true_cost = |bytes: u64| call + ((bytes * kib) >> 10);
            for _ in 0..100 {
                for bytes in [64, 4 << 20] {
                    let took = true_cost(bytes);
                    ringer = ringer.after(0, took, bytes, DoorbellWait::ByCost);
                }
            }
            for bytes in [64, 150_528] {
                let (found, is) = (ringer.takes_ns(bytes) as f64, true_cost(bytes) as f64);
                prop_assert!((found - is).abs() <= 0.1 * is + 20.0, "{found} for {is}");
            }
        }

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
                if !may(&mut ringer, now) {
                    ringer = ringer.after(now, now + cost, 0, DoorbellWait::ByCost);
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
                let waits = may(ringer, *now);
                if !waits {
                    *ringer = ringer.after(*now, *now + cost, 0, DoorbellWait::ByCost);
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
                if !may(&mut ringer, now) {
                    ringer = ringer.after(now, now + cost, 0, DoorbellWait::ByCost);
                    now += cost;
                    rung += 1;
                }
            }
            prop_assert!(rung < 50, "{rung} of 200");
        }
    }

    #[test]
    fn a_lost_core_is_not_what_ringing_costs_and_cheap_is_believed_at_once() {
        let mut ringer = Ringer::default().after(0, 1_000, 0, DoorbellWait::ByCost);
        ringer = ringer.after(0, 3_000_000, 0, DoorbellWait::ByCost);
        assert_eq!(ringer.call_ns, 1_375);
        let late = Ringer::default().after(0, 3_000_000, 0, DoorbellWait::ByCost);
        let soon = (0..8).fold(late, |r, _| r.after(0, 1_000, 0, DoorbellWait::ByCost));
        assert!(soon.call_ns < 15_000, "{soon:?}");
    }

    #[test]
    fn who_says_how_long_is_heard() {
        let close = |wait| {
            let mut ringer = Ringer::default();
            let mut now = 0;
            for _ in 0..100 {
                now += 10;
                may(&mut ringer, now);
                ringer = ringer.after(now, now, 0, wait);
            }
            (ringer, now)
        };
        let (mut never, now) = close(DoorbellWait::Ns(0));
        assert!(!may(&mut never, now));
        let (mut long, now) = close(DoorbellWait::Ns(20_000));
        assert!(may(&mut long, now + 19_999 / 2));
        assert!(!may(&mut long, now + 20_000));
    }
}
