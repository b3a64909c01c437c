//! Liveness of a connection's peer, decided by echoes on the data plane. The peer's NIC thread
//! answers each echo. The age of a response never decides: a slow model is not a dead peer.

/// Time limits of the echo, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoCfgs {
    /// This end sends an echo on a connection that was quiet for this long.
    pub interval_ns: u64,
    /// A connection is lost if it stays quiet for this long after an echo.
    pub timeout_ns: u64,
}

/// Action that [`Echo::tick`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EchoAction {
    Wait,
    /// Send an echo with this value.
    Ask(u32),
    /// Take the connection down: the peer has been silent for this many nanoseconds since the echo.
    Lost(u64),
}

/// Liveness state of one connection.
#[derive(Clone, Debug)]
pub struct Echo {
    cfgs: EchoCfgs,
    heard_ns: u64,
    asked_ns: Option<u64>,
    last_asked: u64,
    sequence: u32,
    /// Bytes confirmed by the peer's system at the last progress, and the echo sequence then.
    confirmed: Option<(u64, u32)>,
    /// Time of the first unanswered echo; confirmed bytes do not reset it.
    silent_since: Option<u64>,
    /// Longest time with an unanswered echo, in nanoseconds.
    longest_ns: u64,
}

/// Upper bound of an echo's bytes on the wire.
const ECHO_BYTES: u64 = 64;

impl Echo {
    /// Makes the state of a connection opened at `now_ns`.
    pub(crate) fn new(cfgs: EchoCfgs, now_ns: u64) -> Self {
        Echo {
            cfgs,
            heard_ns: now_ns,
            asked_ns: None,
            last_asked: now_ns,
            sequence: 0,
            confirmed: None,
            silent_since: None,
            longest_ns: 0,
        }
    }

    /// Records that any event came from the peer.
    pub(crate) fn heard(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
        self.asked_ns = None;
        self.confirmed = None;
        if let Some(since) = self.silent_since.take() {
            self.longest_ns = self.longest_ns.max(now_ns.saturating_sub(since));
        }
    }

    /// Longest time so far with an unanswered echo, in nanoseconds. Payload that the peer's system
    /// confirmed meanwhile does not shorten it: a kernel confirms payload for a stopped process
    /// too. The current silence counts once the echo is answered or the connection is lost.
    pub(crate) fn longest_silence_ns(&self) -> u64 {
        self.longest_ns
    }

    /// Whether an echo is unanswered, so that the caller must report confirmed bytes.
    pub(crate) fn waits(&self) -> bool {
        self.asked_ns.is_some()
    }

    /// Records the total of bytes that the peer's system has confirmed. Confirmed payload restarts
    /// the time limit, because an echo waits behind payload on a slow path. Confirmed echoes prove
    /// nothing: a kernel confirms them for a stopped process too.
    pub(crate) fn confirmed(&mut self, now_ns: u64, bytes: u64) {
        match self.confirmed {
            Some((before, echo)) => {
                let echoes = u64::from(self.sequence.wrapping_sub(echo) & 0x0fff_ffff) + 1;
                if bytes.saturating_sub(before) > echoes * ECHO_BYTES {
                    self.asked_ns = Some(now_ns);
                    self.confirmed = Some((bytes, self.sequence));
                }
            }
            None => self.confirmed = Some((bytes, self.sequence)),
        }
    }

    /// Checks the time limits. Sends at most one echo per interval.
    pub(crate) fn tick(&mut self, now_ns: u64) -> EchoAction {
        if let Some(asked) = self.asked_ns {
            let silent = now_ns.saturating_sub(asked);
            if silent >= self.cfgs.timeout_ns {
                let since = self.silent_since.unwrap_or(asked);
                self.longest_ns = self.longest_ns.max(now_ns.saturating_sub(since));
                return EchoAction::Lost(silent);
            }
        }
        let quiet = now_ns.saturating_sub(self.heard_ns) >= self.cfgs.interval_ns;
        let due = now_ns.saturating_sub(self.last_asked) >= self.cfgs.interval_ns;
        if quiet && due {
            self.asked_ns.get_or_insert(now_ns);
            self.silent_since.get_or_insert(now_ns);
            self.last_asked = now_ns;
            self.sequence = (self.sequence + 1) & 0x0fff_ffff;
            return EchoAction::Ask(self.sequence);
        }
        EchoAction::Wait
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CFGS: EchoCfgs = EchoCfgs {
        interval_ns: 100,
        timeout_ns: 1000,
    };

    #[test]
    fn a_path_that_carries_payload_is_not_dead_and_one_that_carries_echoes_alone_is() {
        let (mut slow, mut dead) = (Echo::new(CFGS, 0), Echo::new(CFGS, 0));
        for t in 1..100u64 {
            let now = 100 * t;
            assert!(!matches!(slow.tick(now), EchoAction::Lost(_)), "{t}");
            if now <= 1100 {
                let lost = matches!(dead.tick(now), EchoAction::Lost(_));
                assert_eq!(lost, now == 1100, "{t}");
            }
            assert!(slow.waits());
            slow.confirmed(now, 1500 * t);
            dead.confirmed(now, 1_000_000 + ECHO_BYTES * t);
        }
        // Once no bytes are confirmed any more, the slow path is dead too.
        let end = 9900 + CFGS.timeout_ns;
        assert!(!matches!(slow.tick(end - 1), EchoAction::Lost(_)));
        assert!(matches!(slow.tick(end), EchoAction::Lost(_)));
    }

    #[test]
    fn the_longest_silence_is_kept_whatever_the_peers_system_confirms() {
        let mut e = Echo::new(CFGS, 0);
        assert!(matches!(e.tick(100), EchoAction::Ask(_)));
        e.confirmed(200, 1_000);
        e.confirmed(700, 90_000);
        assert_eq!(e.longest_silence_ns(), 0, "not over yet");
        e.heard(900);
        assert_eq!(e.longest_silence_ns(), 800);
        assert!(matches!(e.tick(1_000), EchoAction::Ask(_)));
        e.heard(1_100);
        assert_eq!(e.longest_silence_ns(), 800);
        e.tick(1_200);
        assert!(matches!(e.tick(2_200), EchoAction::Lost(1_000)));
        assert_eq!(e.longest_silence_ns(), 1_000, "a loss is a silence too");
    }

    #[test]
    fn a_silent_peer_is_lost_after_the_timeout_and_not_before() {
        let mut e = Echo::new(CFGS, 0);
        assert_eq!(e.tick(99), EchoAction::Wait);
        assert_eq!(e.tick(100), EchoAction::Ask(1));
        assert_eq!(e.tick(150), EchoAction::Wait);
        assert_eq!(e.tick(200), EchoAction::Ask(2));
        assert!(matches!(e.tick(1099), EchoAction::Ask(_)));
        assert_eq!(e.tick(1100), EchoAction::Lost(1000));
    }

    proptest! {
        /// With a simulated clock: a peer that answers each echo in time is never lost, however
        /// slow its responses. A peer that stops is lost within timeout + interval + one tick.
        #[test]
        fn only_silence_kills(
            delays in prop::collection::vec(1u64..900, 1..60),
            tick in 1u64..80,
        ) {
            let mut e = Echo::new(CFGS, 0);
            let mut now = 0;
            for d in delays {
                // Waits for an echo.
                loop {
                    now += tick;
                    match e.tick(now) {
                        EchoAction::Ask(_) => break,
                        EchoAction::Wait => {}
                        EchoAction::Lost(_) => prop_assert!(false, "lost at {}", now),
                    }
                }
                // Answers the echo `d` ns later.
                let answer = now + d;
                while now + tick < answer {
                    now += tick;
                    prop_assert!(!matches!(e.tick(now), EchoAction::Lost(_)));
                }
                e.heard(answer);
                now = now.max(answer);
            }
            let stopped = now;
            loop {
                now += tick;
                if let EchoAction::Lost(_) = e.tick(now) { break }
                prop_assert!(now <= stopped + CFGS.timeout_ns + 2 * CFGS.interval_ns + 2 * tick);
            }
        }
    }
}
