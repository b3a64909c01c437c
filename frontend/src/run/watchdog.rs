//! A lost sample would keep LoadGen in `StartTest` for ever, and so would a record of one that
//! LoadGen loses itself ([`loadgen_bridge::outgrow_log`]); this notices.
//!
//! How long a response takes says nothing about a peer. That *nothing at all* comes while some are
//! due, no response and no token of one, for so long that the configuration calls it too long, ends
//! the run. LoadGen's own work after the last sample takes minutes where its logs are large; that
//! its threads do none while it has heard of every sample ends the run as well.

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

/// One part in so many of a core: what threads use that wait, and look a hundred times a second
/// whether there is something to do, is less.
const AT_REST: u64 = 50;

/// Watches LoadGen once it has heard of every sample. The clock is passed in.
#[derive(Clone, Debug)]
pub struct AfterTheLast {
    limit_ns: u64,
    /// Clock, and CPU time of LoadGen's threads, where the window that is open began.
    began: Option<(u64, u64)>,
}

impl AfterTheLast {
    /// Barks after `limit_ns` in which LoadGen's threads rested.
    pub fn new(limit_ns: u64) -> Self {
        AfterTheLast {
            limit_ns,
            began: None,
        }
    }

    /// A look: whether every sample of a series was issued and answered, and `ran` for the CPU time
    /// of LoadGen's threads in nanoseconds, which is not known everywhere. Returns how long they
    /// have rested, if that is too long.
    pub fn look(
        &mut self,
        now_ns: u64,
        answered_all: bool,
        ran: impl FnOnce() -> Option<u64>,
    ) -> Option<u64> {
        if !answered_all {
            self.began = None;
            return None;
        }
        let for_ns = self
            .began
            .map_or(u64::MAX, |(at, _)| now_ns.saturating_sub(at));
        if for_ns < self.limit_ns {
            return None;
        }
        let ran = ran()?;
        let (_, before) = self.began.replace((now_ns, ran))?;
        // Less than before: one of them has ended.
        let used = ran.checked_sub(before)?;
        (used < for_ns / AT_REST).then_some(for_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loadgen_may_work_for_as_long_as_it_likes_after_the_last_sample() {
        let mut w = AfterTheLast::new(1000);
        for i in 0..50 {
            let now = 500 * i;
            assert_eq!(w.look(now, true, || Some(now / 10)), None, "{now}");
        }
    }

    #[test]
    fn once_it_rests_it_is_waited_for_so_long() {
        let mut w = AfterTheLast::new(1000);
        assert_eq!(w.look(0, false, || Some(0)), None);
        assert_eq!(w.look(5000, true, || Some(700)), None);
        assert_eq!(w.look(5999, true, || unreachable!("not due")), None);
        assert_eq!(w.look(6000, true, || Some(719)), Some(1000));
        assert_eq!(w.look(7000, true, || Some(9)), None, "a thread has ended");
    }

    #[test]
    fn another_series_begins_anew_and_what_is_not_known_says_nothing() {
        let mut w = AfterTheLast::new(1000);
        assert_eq!(w.look(0, true, || Some(7)), None);
        assert_eq!(w.look(900, false, || Some(7)), None);
        assert_eq!(w.look(1100, true, || Some(7)), None);
        assert_eq!(w.look(2099, true, || Some(7)), None);
        assert_eq!(w.look(2100, true, || None), None);
        assert_eq!(w.look(2100, true, || Some(7)), Some(1000));
    }

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
