//! When the doorbell of a connection may wait for the next sample: a system call for each of half a
//! million samples a second is what the thread that issues them would spend its time on.

/// A sample that is issued while this many are in flight may wait for the next one's doorbell: its
/// answer comes behind theirs, and the NIC thread comes by to take them.
const COMPANY: usize = 16;
/// Most writes that wait.
const WAITING: usize = 32;

/// Writes posted since the last ring, and when that was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Doorbell {
    /// Where the last ring is longer ago than this, nothing waits:
    /// the next sample may be as far. 0: nothing ever waits.
    recent_ns: u64,
    waiting: usize,
    rung_ns: u64,
}

impl Doorbell {
    /// A write may wait only while the last ring is less than `wait_ns` ago, which is looked at
    /// with the next post; a NIC thread rings in its next turn whatever waits.
    pub fn new(wait_ns: u64) -> Self {
        Doorbell {
            recent_ns: wait_ns,
            ..Doorbell::default()
        }
    }

    /// Whether `posted` writes more, the last of `in_flight`
    /// samples, may wait with those that do. If so they are noted.
    pub fn wait(&mut self, posted: usize, in_flight: usize, now_ns: u64) -> bool {
        let wait = in_flight >= COMPANY
            && self.waiting + posted <= WAITING
            && now_ns.saturating_sub(self.rung_ns) < self.recent_ns;
        if wait {
            self.waiting += posted;
        }
        wait
    }

    /// Whether anything waits.
    pub fn waits(&self) -> bool {
        self.waiting > 0
    }

    /// It was rung for all that was posted.
    pub fn rung(&mut self, now_ns: u64) {
        (self.waiting, self.rung_ns) = (0, now_ns);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RECENT_NS: u64 = 20_000;

    proptest! {
        /// Whoever posts rings where the doorbell does not wait:
        /// then no write is older than the bound at any post.
        #[test]
        fn nothing_waits_longer_than_the_bound_once_another_comes(
            posts in prop::collection::vec((0u64..40_000, 1usize..40, 0usize..64), 1..200),
        ) {
            let mut bell = Doorbell::new(RECENT_NS);
            let (mut now, mut first, mut waiting) = (1_000_000, None, 0);
            for (after, posted, in_flight) in posts {
                now += after;
                if bell.wait(posted, in_flight, now) {
                    waiting += posted;
                    let first = *first.get_or_insert(now);
                    prop_assert!(now - first < RECENT_NS);
                    prop_assert!(waiting <= WAITING && in_flight >= COMPANY);
                } else {
                    bell.rung(now);
                    (first, waiting) = (None, 0);
                }
                prop_assert_eq!(bell.waits(), waiting > 0);
            }
        }
    }

    #[test]
    fn a_lone_sample_and_one_after_a_pause_ring_at_once() {
        let mut bell = Doorbell::new(RECENT_NS);
        bell.rung(1_000_000);
        assert!(!bell.wait(1, COMPANY - 1, 1_000_001));
        assert!(bell.wait(1, COMPANY, 1_000_001));
        assert!(!bell.wait(1, COMPANY, 1_000_000 + RECENT_NS));
        bell.rung(1_000_000 + RECENT_NS);
        assert!(!bell.waits());
    }

    #[test]
    fn where_no_wait_is_wanted_nothing_waits() {
        let mut bell = Doorbell::new(0);
        bell.rung(1_000_000);
        assert!(!bell.wait(1, 10 * COMPANY, 1_000_000));
    }
}
