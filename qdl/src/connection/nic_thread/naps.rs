//! Short sleeps of a thread whose samples take long, behind which it sees to what came meanwhile.
//!
//! Where images come some 20 us apart, a thread that has copied one has nothing to do, and too
//! little time to sleep until it is woken: it looks for the next one over and over. But where an
//! answer takes milliseconds, it is all the same to whoever waits for it whether each of its copies
//! begins at once or 50 us later; and a core that is let go of so is somebody else's, the engine's
//! or LoadGen's. How long is a small part of what engines take for answers ([`Patience`]), and no
//! nap at all where that is hardly more than waking up takes: what is quick is looked for as
//! before.

use std::sync::atomic::{AtomicU64, Ordering};

/// What comes waits for no more than this part of what the quickest answers take lately. On its way
/// a sample may meet three naps: before its copy here, its copy there, and that of its answer.
const PART: u64 = 64;
/// Nobody gains by more: what a sleep costs is a small part of this everywhere.
const LONGEST_NS: u64 = 200_000;
/// How late a nap is, ns, before the first: on a machine in the middle. Each shows it anew.
const LATE_NS: f64 = 20_000.0;
/// Answers, of those that are looked at, that a quicker one is remembered for.
const MEMORY: u64 = 1024;
/// A nap is worth it where it lasts for so many times what waking up from it takes.
const WORTH: f64 = 2.0;
/// Weight of the past against one more nap; how late it was counts for so many times that at most.
const PAST: f64 = 8.0;
const OUTLIER: f64 = 4.0;
/// Each nap that was not worth it makes the next one look better by this part: what was measured on
/// a bad day is forgotten within some seconds of looking.
const FORGOTTEN: f64 = 1e-6;

/// How long what comes by a share's connections may wait, by what engines take for answers. Whoever
/// knows of an answer says so, at the cost of a store; the NIC thread, when it has nothing to do,
/// looks at what was said last.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// What an answer took, ns; 0 once that has been looked at.
    said_ns: AtomicU64,
    /// The quickest of those lately, ns; 0 where none is known.
    quickest_ns: AtomicU64,
}

impl Patience {
    /// An answer took so long.
    pub fn answered(&self, took_ns: u64) {
        self.said_ns.store(took_ns.max(1), Ordering::Relaxed);
    }

    /// So long, ns. For the NIC thread alone.
    pub fn ns(&self) -> u64 {
        let said = self.said_ns.load(Ordering::Relaxed);
        let known = self.quickest_ns.load(Ordering::Relaxed);
        if said == 0 {
            return known / PART;
        }
        // What is said meanwhile may be lost: more is to come.
        self.said_ns.store(0, Ordering::Relaxed);
        let next = match known {
            0 => said,
            known if said <= known => said,
            known => known + (said - known).div_ceil(MEMORY),
        };
        self.quickest_ns.store(next, Ordering::Relaxed);
        next / PART
    }
}

/// What a thread knows of its naps.
#[derive(Clone, Debug)]
pub(super) struct Naps {
    /// How much later than asked for it was at work again, ns: smoothed.
    late_ns: f64,
}

impl Naps {
    /// Of a thread that has not slept yet.
    pub fn new() -> Self {
        Naps { late_ns: LATE_NS }
    }

    /// How long to sleep, ns, where what comes may wait for `patience_ns`; `None` where that is not
    /// worth it.
    pub fn next(&mut self, patience_ns: u64) -> Option<u64> {
        let patience = patience_ns.min(LONGEST_NS) as f64;
        if patience < WORTH * self.late_ns || patience < 1.0 {
            if patience > 0.0 {
                self.late_ns *= 1.0 - FORGOTTEN;
            }
            return None;
        }
        Some(((patience - self.late_ns) as u64).max(1))
    }

    /// A nap that was to last `asked_ns` took so long.
    pub fn took(&mut self, asked_ns: u64, took_ns: u64) {
        let late = took_ns.saturating_sub(asked_ns) as f64;
        let most = OUTLIER * self.late_ns.max(1_000.0);
        self.late_ns += (late.min(most) - self.late_ns) / PAST;
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naps(late_ns: u64) -> Naps {
        Naps {
            late_ns: late_ns as f64,
        }
    }

    #[test]
    fn what_is_quick_is_waited_for_awake() {
        let patience = Patience::default();
        assert_eq!(patience.ns(), 0);
        assert_eq!(naps(1).next(patience.ns()), None, "nothing is known");
        patience.answered(30_000);
        assert_eq!(naps(20_000).next(patience.ns()), None);
        let slow = Patience::default();
        slow.answered(6_400_000);
        assert_eq!(slow.ns(), 100_000);
        assert_eq!(naps(20_000).next(slow.ns()), Some(80_000));
        assert_eq!(naps(60_000).next(slow.ns()), None, "waking up takes longer");
    }

    #[test]
    fn one_quick_answer_is_remembered_for_a_while() {
        let patience = Patience::default();
        let after = |took, times| {
            (0..times).for_each(|_| {
                patience.answered(took);
                patience.ns();
            });
            patience.ns()
        };
        assert_eq!(after(6_400_000, 1), 100_000);
        assert_eq!(after(64_000, 1), 1_000);
        let soon = after(6_400_000, 100);
        assert!(soon < 11_000, "{soon}");
        assert_eq!(patience.ns(), soon, "nothing was said");
        let late = after(6_400_000, 10_000);
        assert!(late > 99_000, "{late}");
    }

    #[test]
    fn a_bad_day_is_forgotten() {
        let mut naps = naps(20_000);
        while let Some(asked) = naps.next(100_000) {
            naps.took(asked, asked + 5_000_000);
        }
        let mut looks = 0u64;
        while naps.next(100_000).is_none() {
            looks += 1;
            assert!(looks < 10_000_000, "for ever");
        }
        assert!(looks > 10_000, "at once");
    }

    proptest! {
        /// Naps that are as late as the last ones are over when what comes may wait no longer; and
        /// whatever was measured, none is longer than that.
        #[test]
        fn nobody_waits_longer_than_is_allowed(
            patience in 0u64..10_000_000,
            awake in 0u64..1_000_000,
            late in prop::collection::vec(0u64..2_000_000, 0..50),
            steady in 0u64..90_000,
        ) {
            let mut naps = naps(awake);
            for late in late.into_iter().chain(std::iter::repeat_n(steady, 200)) {
                if let Some(asked) = naps.next(patience) {
                    prop_assert!(asked <= patience.clamp(1, LONGEST_NS));
                    naps.took(asked, asked + late);
                }
            }
            if let Some(asked) = naps.next(patience) {
                let over = asked + steady;
                let allowed = patience.min(LONGEST_NS);
                prop_assert!(over <= allowed + allowed / 100 + 2, "{} of {}", over, allowed);
            }
        }
    }
}
