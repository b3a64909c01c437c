//! A lost sample would keep LoadGen in `StartTest` for ever; this notices.
//!
//! How long a response takes says nothing about a peer. That *nothing at all* comes while some are
//! due, no response and no token of one, for so long that the configuration calls it too long, ends
//! the run.

/// Samples that stopped coming back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// Samples issued and not completed.
    pub outstanding: u64,
    /// Nanoseconds without one coming back, and without a part of one.
    pub for_ns: u64,
}

/// Watches two counters. The clock is passed in.
#[derive(Clone, Debug)]
pub struct Watchdog {
    limit_ns: u64,
    moved: u64,
    /// When something last moved, or there was nothing to wait for.
    moved_ns: u64,
}

impl Watchdog {
    /// Barks after `limit_ns` in which nothing moved.
    pub fn new(limit_ns: u64, now_ns: u64) -> Self {
        Watchdog {
            limit_ns,
            moved: 0,
            moved_ns: now_ns,
        }
    }

    /// A look at the counters: `moved` counts samples that came back and parts of those that go on.
    pub fn look(&mut self, now_ns: u64, moved: u64, outstanding: u64) -> Option<Stalled> {
        if moved != self.moved || outstanding == 0 {
            self.moved = moved;
            self.moved_ns = now_ns;
            return None;
        }
        let for_ns = now_ns.saturating_sub(self.moved_ns);
        (for_ns >= self.limit_ns).then_some(Stalled {
            outstanding,
            for_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_barks_when_nothing_comes_back_and_not_a_moment_sooner() {
        let mut w = Watchdog::new(100, 1000);
        assert_eq!(w.look(1050, 0, 5), None);
        assert_eq!(w.look(1099, 0, 5), None);
        assert_eq!(
            w.look(1100, 0, 7),
            Some(Stalled {
                outstanding: 7,
                for_ns: 100
            })
        );
    }

    #[test]
    fn one_sample_is_enough_to_keep_it_quiet() {
        let mut w = Watchdog::new(100, 0);
        for i in 1..50 {
            assert_eq!(w.look(i * 99, i, 3), None);
        }
        assert!(w.look(49 * 99 + 100, 49, 3).is_some());
    }

    #[test]
    fn with_nothing_outstanding_there_is_nothing_to_wait_for() {
        let mut w = Watchdog::new(100, 0);
        assert_eq!(w.look(5000, 0, 0), None);
        // The clock runs from when the first sample was
        // seen outstanding, at the latest look before.
        assert_eq!(w.look(5099, 0, 1), None);
        assert!(w.look(5100, 0, 1).is_some());
    }

    #[test]
    fn a_clock_that_goes_backwards_does_no_harm() {
        let mut w = Watchdog::new(100, 1000);
        assert_eq!(w.look(10, 0, 1), None);
    }
}
