//! Ends a run that would not end: a lost sample keeps LoadGen in `StartTest` forever, and a record
//! that LoadGen itself loses does too ([`loadgen_bridge::outgrow_log`]).
//!
//! The latency of a single response says nothing about a peer. The run ends if samples are
//! outstanding, and for the configured time no response or token arrives and no engine works: an
//! accelerator's heartbeats report tokens and batches, also of answers that come whole. After the
//! last sample LoadGen works for minutes if its logs are large. The run ends too if LoadGen's
//! threads rest although LoadGen has all answers.

/// Watches the progress of samples. The caller passes the clock.
#[derive(Clone, Debug)]
pub struct Watchdog {
    limit_ns: u64,
    moved: u64,
    /// Time of the last progress, or of the last look without outstanding samples.
    moved_ns: u64,
}

impl Watchdog {
    pub fn new(limit_ns: u64, now_ns: u64) -> Self {
        Watchdog {
            limit_ns,
            moved: 0,
            moved_ns: now_ns,
        }
    }

    /// Checks the counters; `moved` counts responses, their parts, and steps of engines. Returns
    /// the time without progress, in nanoseconds, once that time reaches the limit.
    pub fn look(&mut self, now_ns: u64, moved: u64, outstanding: u64) -> Option<u64> {
        if moved != self.moved || outstanding == 0 {
            self.moved = moved;
            self.moved_ns = now_ns;
            return None;
        }
        let for_ns = now_ns.saturating_sub(self.moved_ns);
        (for_ns >= self.limit_ns).then_some(for_ns)
    }
}

/// LoadGen rests while its threads use less than 1/`AT_REST` of a core. Waiting threads that poll
/// a hundred times a second use less.
const AT_REST: u64 = 50;

/// Watches LoadGen after it has all answers. The caller passes the clock.
#[derive(Clone, Debug)]
pub struct AfterTheLast {
    limit_ns: u64,
    /// Time, and CPU time of LoadGen's threads, at the start of the current window.
    began: Option<(u64, u64)>,
}

impl AfterTheLast {
    /// Creates a watchdog that reports when LoadGen's threads have rested for `limit_ns`.
    pub fn new(limit_ns: u64) -> Self {
        AfterTheLast {
            limit_ns,
            began: None,
        }
    }

    /// Checks LoadGen. `answered_all`: every sample of a series is issued and answered. `ran`
    /// returns the CPU time of LoadGen's threads in nanoseconds, if known. Returns the resting time
    /// in nanoseconds once it reaches the limit.
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
        // CPU time decreases when a thread has ended.
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
        for (now, moved, outstanding, expected) in [
            (10, 0, 1, None), // A clock that goes backwards does no harm.
            (1099, 0, 5, None),
            (1100, 0, 7, Some(100)),
            (1199, 1, 3, None),
            (1298, 2, 3, None),
            (1398, 2, 3, Some(100)),
            (5000, 2, 0, None),
            // The clock runs from the last look before the first sample was seen outstanding.
            (5099, 2, 1, None),
            (5100, 2, 1, Some(100)),
        ] {
            assert_eq!(w.look(now, moved, outstanding), expected, "{now}");
        }
    }
}
