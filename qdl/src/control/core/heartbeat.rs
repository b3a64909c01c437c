//! Heartbeat of a session: liveness of the peer, and times of this node's heartbeats.

use std::time::Duration;

/// Periods of a session's heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatCfgs {
    /// Interval of this node's heartbeats.
    pub every: Duration,
    /// Silence after which the peer counts as gone.
    pub gone_after: Duration,
}

impl Default for HeartbeatCfgs {
    fn default() -> Self {
        HeartbeatCfgs {
            every: Duration::from_millis(500),
            gone_after: Duration::from_secs(2),
        }
    }
}

impl HeartbeatCfgs {
    /// Checks the periods.
    ///
    /// # Errors
    /// The problem of a period.
    pub(crate) fn check(&self) -> Result<(), String> {
        let HeartbeatCfgs { every, gone_after } = *self;
        if every < Duration::from_millis(1) || every > Duration::from_secs(3600) {
            Err(format!("every {every:?}, must be 1 ms to 1 h"))
        } else if gone_after <= every {
            Err(format!(
                "gone after {gone_after:?}, must be longer than the period, {every:?}"
            ))
        } else {
            Ok(())
        }
    }

    /// Limit of the peer's period: from this period on, a delayed heartbeat could end the session.
    pub(super) fn longest_period(&self) -> Duration {
        (self.every + self.gone_after) / 2
    }
}

/// Heartbeat state of one session. Times are nanoseconds of one monotonic clock.
#[derive(Clone, Debug)]
pub(super) struct Heartbeat {
    every: u64,
    gone_after: u64,
    /// Time at which [`Heartbeat::take_due`] becomes true.
    pub next_send: u64,
    sent: u64,
    heard_at: u64,
    heard: u64,
}

pub(super) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl Heartbeat {
    /// Makes the state of a session that begins at `now`; the first heartbeat is due at once.
    pub(crate) fn new(cfgs: &HeartbeatCfgs, now: u64) -> Self {
        Heartbeat {
            every: nanos(cfgs.every),
            gone_after: nanos(cfgs.gone_after),
            next_send: now,
            sent: 0,
            heard_at: now,
            heard: 0,
        }
    }

    /// Whether a heartbeat is due. Missed heartbeats are not sent later.
    pub(crate) fn take_due(&mut self, now: u64) -> bool {
        let due = now >= self.next_send;
        if due {
            self.next_send = now.saturating_add(self.every);
        }
        due
    }

    /// Sequence number for the next heartbeat.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// Records that a frame came from the peer.
    pub(crate) fn note_frame(&mut self, now: u64) {
        self.heard_at = self.heard_at.max(now);
    }

    /// Records the sequence number of the peer's heartbeat.
    ///
    /// # Errors
    /// The expected number, if the peer's number differs: TCP keeps order, so the peer is broken.
    pub(crate) fn check_number(&mut self, seq: u64) -> Result<(), u64> {
        let expected = self.heard + 1;
        if seq != expected {
            return Err(expected);
        }
        self.heard = seq;
        Ok(())
    }

    /// Duration of the peer's silence, once it reaches the limit.
    pub(crate) fn silence(&self, now: u64) -> Option<Duration> {
        let silent = now.saturating_sub(self.heard_at);
        (silent >= self.gone_after).then(|| Duration::from_nanos(silent))
    }

    /// Time at which [`Heartbeat::silence`] returns a value, unless a frame comes earlier.
    pub(crate) fn gone_at(&self) -> u64 {
        self.heard_at.saturating_add(self.gone_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_long_sleep_of_this_node_sends_one_heartbeat_not_many() {
        let mut h = Heartbeat::new(&HeartbeatCfgs::default(), 0);
        assert!(h.take_due(0));
        assert!(h.take_due(3_600_000 * MS));
        assert!(!h.take_due(3_600_000 * MS));
    }

    #[test]
    fn a_peer_is_gone_at_the_moment_it_is_due_and_not_before() {
        let mut h = Heartbeat::new(&HeartbeatCfgs::default(), 5);
        h.note_frame(7 * MS);
        h.note_frame(6 * MS);
        let at = h.gone_at();
        assert_eq!(at, 2007 * MS);
        assert_eq!(h.silence(at - 1), None);
        assert_eq!(h.silence(at), Some(Duration::from_secs(2)));
    }

    #[test]
    fn periods_must_grow() {
        let ms = Duration::from_millis;
        let cfgs = |a, b| HeartbeatCfgs {
            every: ms(a),
            gone_after: ms(b),
        };
        cfgs(1, 2).check().expect("fine");
        HeartbeatCfgs::default().check().expect("fine");
        for bad in [cfgs(0, 2), cfgs(2, 2), cfgs(3_600_001, 4_000_000)] {
            bad.check().expect_err("not in order");
        }
    }
}
