//! Is the peer alive, and when does it hear from us? The clock is passed in.

use std::time::Duration;

/// Periods of a session's heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatCfgs {
    /// How often this node sends one.
    pub every: Duration,
    /// Silence after which the peer is suspect.
    pub suspect_after: Duration,
    /// Silence after which the peer is gone.
    pub gone_after: Duration,
}

impl Default for HeartbeatCfgs {
    fn default() -> Self {
        HeartbeatCfgs {
            every: Duration::from_millis(500),
            suspect_after: Duration::from_millis(1500),
            gone_after: Duration::from_secs(3),
        }
    }
}

impl HeartbeatCfgs {
    /// Do the periods make sense? At least 1 ms, and each longer than the one before.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(&self) -> Result<(), String> {
        let HeartbeatCfgs {
            every,
            suspect_after,
            gone_after,
        } = *self;
        if every < Duration::from_millis(1) || every > Duration::from_secs(3600) {
            Err(format!("every {every:?}, must be 1 ms to 1 h"))
        } else if suspect_after <= every {
            Err(format!(
                "suspect after {suspect_after:?}, must be longer than the period, {every:?}"
            ))
        } else if gone_after <= suspect_after {
            Err(format!(
                "gone after {gone_after:?}, must be longer than suspect after, {suspect_after:?}"
            ))
        } else {
            Ok(())
        }
    }
}

/// What is known of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// Heard of lately.
    Alive,
    /// Silent for longer than it should be.
    Suspect,
    /// Silent for too long; there is no way back.
    Gone,
}

/// A heartbeat whose number does not follow the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfOrder {
    /// Number it has.
    pub got: u64,
    /// Number it should have.
    pub expected: u64,
}

/// Both directions of one session's heartbeat. Times are nanoseconds of one monotonic clock.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    every: u64,
    suspect_after: u64,
    gone_after: u64,
    next_send: u64,
    sent: u64,
    heard_at: u64,
    heard: u64,
    health: Health,
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl Heartbeat {
    /// A session that begins now: the peer has just been heard, and a heartbeat is due.
    pub fn new(cfgs: &HeartbeatCfgs, now: u64) -> Self {
        Heartbeat {
            every: nanos(cfgs.every),
            suspect_after: nanos(cfgs.suspect_after),
            gone_after: nanos(cfgs.gone_after),
            next_send: now,
            sent: 0,
            heard_at: now,
            heard: 0,
            health: Health::Alive,
        }
    }

    /// Number of the heartbeat to send now, if one is due. Missed ones are not made up for.
    pub fn due(&mut self, now: u64) -> Option<u64> {
        if now < self.next_send {
            return None;
        }
        self.next_send = now.saturating_add(self.every);
        self.sent += 1;
        Some(self.sent)
    }

    /// Any frame of the peer came: it is alive, unless it was gone already. Returns true when it was
    /// suspect before.
    pub fn heard(&mut self, now: u64) -> bool {
        if self.health == Health::Gone {
            return false;
        }
        self.heard_at = self.heard_at.max(now);
        std::mem::replace(&mut self.health, Health::Alive) == Health::Suspect
    }

    /// A heartbeat of the peer came with this number. Call [`Heartbeat::heard`] too.
    ///
    /// # Errors
    /// [`OutOfOrder`]: on an ordered connection that is no network's doing.
    pub fn number(&mut self, seq: u64) -> Result<(), OutOfOrder> {
        let expected = self.heard + 1;
        if seq != expected {
            return Err(OutOfOrder { got: seq, expected });
        }
        self.heard = seq;
        Ok(())
    }

    /// What is to be thought of the peer now; call it when nothing of the peer waits to be read. Returns
    /// the health if it changed.
    pub fn check(&mut self, now: u64) -> Option<Health> {
        let silent = self.silent(now);
        let health = if self.health == Health::Gone || silent >= self.gone_after {
            Health::Gone
        } else if silent >= self.suspect_after {
            Health::Suspect
        } else {
            Health::Alive
        };
        let changed = health != self.health;
        self.health = health;
        changed.then_some(health)
    }

    /// What was last thought of the peer.
    pub fn health(&self) -> Health {
        self.health
    }

    /// Nanoseconds since the peer was last heard.
    pub fn silent(&self, now: u64) -> u64 {
        now.saturating_sub(self.heard_at)
    }

    /// When to call [`Heartbeat::due`] and [`Heartbeat::check`] again.
    pub fn next_at(&self) -> u64 {
        let change = match self.health {
            Health::Alive => self.heard_at.saturating_add(self.suspect_after),
            Health::Suspect => self.heard_at.saturating_add(self.gone_after),
            Health::Gone => u64::MAX,
        };
        self.next_send.min(change)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cfgs() -> impl Strategy<Value = HeartbeatCfgs> {
        (1u64..50, 1u64..100, 1u64..100).prop_map(|(every, suspect, gone)| HeartbeatCfgs {
            every: Duration::from_millis(every),
            suspect_after: Duration::from_millis(every + suspect),
            gone_after: Duration::from_millis(every + suspect + gone),
        })
    }

    const MS: u64 = 1_000_000;

    proptest! {
        /// Whoever wakes when told to is never late with a heartbeat or with a change of health, and never
        /// spins.
        #[test]
        fn waking_when_told_is_enough(cfgs in cfgs(), start in 0u64..1 << 60,
            frames in prop::collection::vec(1u64..200 * MS, 0..40))
        {
            let mut h = Heartbeat::new(&cfgs, start);
            let (every, suspect, gone) =
                (nanos(cfgs.every), nanos(cfgs.suspect_after), nanos(cfgs.gone_after));
            let mut now = start;
            let mut last_heard = start;
            let mut sent_at = None;
            let mut seq = 0;
            let mut frames = frames.into_iter();
            let mut next_frame = frames.next().map(|f| start + f);
            loop {
                if let Some(s) = h.due(now) {
                    seq += 1;
                    prop_assert_eq!(s, seq, "numbers follow each other");
                    if let Some(last) = sent_at {
                        prop_assert_eq!(now - last, every, "on time, not early");
                    }
                    sent_at = Some(now);
                }
                h.check(now);
                let silent = now - last_heard;
                let expected = if silent >= gone { Health::Gone }
                    else if silent >= suspect { Health::Suspect } else { Health::Alive };
                prop_assert_eq!(h.health(), expected);
                if expected == Health::Gone {
                    prop_assert_eq!(silent, gone, "declared at the moment it is due");
                    break;
                }
                prop_assert!(h.next_at() > now, "no spinning");
                match next_frame {
                    Some(at) if at <= h.next_at() => {
                        now = at;
                        let was = h.health();
                        // The silence before a frame that comes in time never counts as gone.
                        prop_assert_eq!(h.heard(now), was == Health::Suspect);
                        prop_assert_eq!(h.health(), Health::Alive);
                        last_heard = now;
                        next_frame = frames.next().map(|f| now + f);
                    }
                    _ => now = h.next_at(),
                }
            }
            let at = now + 1;
            prop_assert!(!h.heard(at));
            prop_assert_eq!(h.check(at), None, "gone is for good");
            prop_assert_eq!(h.health(), Health::Gone);
        }

        #[test]
        fn numbers_must_follow(seqs in prop::collection::vec(0u64..5, 1..20)) {
            let mut h = Heartbeat::new(&HeartbeatCfgs::default(), 0);
            let mut expected = 1;
            for got in seqs {
                let answer = h.number(got);
                if got == expected {
                    prop_assert_eq!(answer, Ok(()));
                    expected += 1;
                } else {
                    prop_assert_eq!(answer, Err(OutOfOrder { got, expected }));
                }
            }
        }
    }

    #[test]
    fn a_long_sleep_of_this_node_sends_one_heartbeat_not_many() {
        let mut h = Heartbeat::new(&HeartbeatCfgs::default(), 0);
        assert_eq!(h.due(0), Some(1));
        assert_eq!(h.due(3_600_000 * MS), Some(2));
        assert_eq!(h.due(3_600_000 * MS), None);
    }

    #[test]
    fn periods_must_grow() {
        let ms = Duration::from_millis;
        let cfgs = |a, b, c| HeartbeatCfgs {
            every: ms(a),
            suspect_after: ms(b),
            gone_after: ms(c),
        };
        cfgs(1, 2, 3).check().expect("fine");
        HeartbeatCfgs::default().check().expect("fine");
        for bad in [cfgs(0, 2, 3), cfgs(2, 2, 3), cfgs(1, 3, 3)] {
            bad.check().expect_err("not in order");
        }
    }
}
