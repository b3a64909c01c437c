//! The part of a session that both roles share: handshake, send queue, liveness, end.

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use crate::control::{
    error::ControlError,
    frame::FrameError,
    message::{Counters, ErrorCode, Hex, Message, Role, Scores, VERSION, clip},
};

use super::{
    handshake::{Handshake, LocalNode},
    heartbeat::{Heartbeat, nanos},
};

/// Time for which the peer's bytes are drained at the end of a session. Without draining, the
/// system may answer the peer with a reset, which would discard the error frame.
const LINGER: Duration = Duration::from_millis(500);

/// Time for which a peer that accepts no bytes is still read: it may have sent a bye.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Frames in the send queue at which an accelerator stops reading requests.
const MAX_OUT: usize = 256;

/// Progress of the handshake, for the owner.
#[derive(Debug)]
pub(crate) enum HandshakeStep {
    /// The frontend has authenticated.
    Proved,
    /// An accelerator asks whether the frontend of this name may be served.
    Admit(String),
    /// The session begins, with the peer of this name.
    Connected(String),
}

#[derive(Debug)]
enum Phase {
    Going,
    /// Sending has failed, and the peer's last frames are still read.
    Mute {
        cause: ControlError,
        until: u64,
    },
    /// The cause is set. `shut`: all frames are sent, and the peer's bytes are drained.
    Leaving {
        until: u64,
        shut: bool,
    },
    Over,
}

/// State that both roles share.
#[derive(Debug)]
pub struct Link {
    pub handshake: Handshake,
    handshake_by: u64,
    step: Option<HandshakeStep>,
    out: VecDeque<Message>,
    /// Time at which the first frame that the system has not yet accepted was handed out.
    unsent: Option<u64>,
    heartbeat: Heartbeat,
    phase: Phase,
    cause: Option<ControlError>,
    cause_given: bool,
}

impl Link {
    /// Makes a connection's state. `nonce` must be random. A frontend sends its hello at once.
    pub(crate) fn new(
        role: Role,
        local: Arc<LocalNode>,
        address: String,
        nonce: Hex<32>,
        now: u64,
    ) -> Self {
        let heartbeat = Heartbeat::new(&local.timing.heartbeat, now);
        let handshake_by = now.saturating_add(nanos(local.timing.step));
        let handshake = Handshake::new(role, local, address, nonce);
        let hello = (role == Role::Frontend).then(|| handshake.hello());
        Link {
            handshake,
            handshake_by,
            step: None,
            out: hello.into_iter().collect(),
            unsent: None,
            heartbeat,
            phase: Phase::Going,
            cause: None,
            cause_given: false,
        }
    }

    /// The peer, as errors print it.
    pub(crate) fn peer(&self) -> String {
        self.handshake.peer.clone()
    }

    /// Whether the handshake is complete; stays true after the session's end.
    pub(crate) fn has_begun(&self) -> bool {
        self.handshake.is_done()
    }

    /// Whether the handshake is complete and the session goes on.
    pub(crate) fn in_session(&self) -> bool {
        self.has_begun() && matches!(self.phase, Phase::Going)
    }

    /// Cause of the session's end, once it has ended.
    pub(crate) fn cause(&self) -> Option<&ControlError> {
        self.cause.as_ref()
    }

    /// Whether input should be read. An accelerator stops reading while the peer reads no answers.
    pub(crate) fn wants_input(&self) -> bool {
        match self.phase {
            Phase::Going => !self.is_held_up(),
            Phase::Mute { .. } | Phase::Leaving { .. } => true,
            Phase::Over => false,
        }
    }

    /// Whether the cause is set, so that input is drained.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving { .. })
    }

    /// Whether all frames are sent, so that the sending direction must be shut down.
    pub(crate) fn is_shut(&self) -> bool {
        matches!(self.phase, Phase::Leaving { shut: true, .. })
    }

    /// Whether the connection must be closed.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    fn is_held_up(&self) -> bool {
        self.handshake.role == Role::Accelerator && self.out.len() >= MAX_OUT
    }

    /// Queues a frame of the session; drops it after the session's end.
    pub(crate) fn say(&mut self, message: Message) {
        if self.in_session() {
            self.out.push_back(message);
        }
    }

    /// The next frame to send.
    pub(crate) fn poll_transmit(&mut self, now: u64) -> Option<Message> {
        let message = self.out.pop_front()?;
        self.unsent.get_or_insert(now);
        Some(message)
    }

    /// Records that the system has accepted all frames handed out.
    pub(crate) fn note_flushed(&mut self, now: u64) {
        self.unsent = None;
        if let Phase::Leaving { until, shut } = &mut self.phase
            && self.out.is_empty()
            && !*shut
        {
            (*until, *shut) = (now.saturating_add(nanos(LINGER)), true);
        }
    }

    /// Ends the session, with an error frame to the peer where the cause has one.
    pub(crate) fn fail(&mut self, cause: ControlError, now: u64) {
        if self.cause.is_some() {
            return;
        }
        if let Some((code, text)) = cause.for_peer(self.handshake.role) {
            self.out.push_back(Message::Error { code, text });
        }
        self.cause = Some(cause);
        self.phase = Phase::Leaving {
            until: now.saturating_add(nanos(self.handshake.local.timing.step)),
            shut: false,
        };
    }

    /// Ends the session at once, without a frame to the peer.
    fn end(&mut self, cause: ControlError) {
        self.out.clear();
        self.cause.get_or_insert(cause);
        self.phase = Phase::Over;
    }

    /// Tells the peer that this node has given up a connection.
    pub(crate) fn connection_lost(&mut self, connection: u16, epoch: u32, cause: &str) {
        let cause = clip(cause);
        self.say(Message::ConnectionLost {
            connection,
            epoch,
            cause,
        });
    }

    /// Tells the peer that this node's end of a lost connection is destroyed and uses no slots.
    pub(crate) fn connection_reset(&mut self, connection: u16, epoch: u32) {
        self.say(Message::ConnectionReset { connection, epoch });
    }

    /// Ends the session with an error frame to the peer.
    pub(crate) fn close(&mut self, code: ErrorCode, text: &str, now: u64) {
        let (peer, text) = (self.peer(), clip(text));
        self.fail(ControlError::Ended { peer, code, text }, now);
    }

    /// Ends the session with a bye.
    pub(crate) fn bye(&mut self, now: u64) {
        self.say(Message::Bye {});
        self.fail(ControlError::Bye { peer: self.peer() }, now);
    }

    /// Handles the end of the peer's stream.
    pub(crate) fn handle_eof(&mut self) {
        let (peer, waiting_for) = (self.peer(), self.handshake.expected());
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Mute { cause, .. } => self.end(cause),
            _ if self.handshake.is_done() => self.end(ControlError::Vanished { peer }),
            _ => {
                let text = format!(
                    "closed the control connection while {waiting_for} was expected; see its log"
                );
                self.end(ControlError::Broken { peer, text });
            }
        }
    }

    /// Error of a failing socket. After the handshake, a reset means that the peer's program is
    /// gone.
    fn socket_error(&self, doing: &'static str, source: &io::Error) -> ControlError {
        let peer = self.peer();
        let no_more = matches!(
            source.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
        );
        match self.handshake.is_done() && no_more {
            true => ControlError::Vanished { peer },
            false => ControlError::Broken {
                peer,
                text: format!("{doing} on the control connection: {source}"),
            },
        }
    }

    /// Handles an error of the codec, while reading or writing.
    pub(crate) fn fail_frame(&mut self, e: FrameError, now: u64) {
        let peer = self.peer();
        match e {
            FrameError::Io(source) => self.end(self.socket_error("receiving", &source)),
            FrameError::Version(theirs) => {
                let (own, other) = (self.handshake.role, self.handshake.role.other());
                let same = "run the same release on both";
                let text =
                    format!("speaks protocol version {theirs}, this node speaks {VERSION}: {same}");
                let peer_text = format!(
                    "the {own} speaks protocol version {VERSION}, the {other} {theirs}: {same}"
                );
                self.fail(
                    self.handshake.refusing(ErrorCode::Version, text, peer_text),
                    now,
                );
            }
            source => self.fail(ControlError::protocol(peer, source.to_string()), now),
        }
    }

    /// Handles a failed write. A peer that sends a bye and closes can cause that failure, so the
    /// peer's last frames are read before the failure counts.
    pub(crate) fn fail_write(&mut self, e: &io::Error, now: u64) {
        self.out.clear();
        self.unsent = None;
        if !matches!(self.phase, Phase::Going) {
            self.phase = Phase::Over;
            return;
        }
        self.phase = Phase::Mute {
            cause: self.socket_error("sending", e),
            until: now.saturating_add(nanos(LAST_WORDS)),
        };
    }

    /// Ends the draining of the peer's bytes.
    pub(crate) fn end_lingering(&mut self) {
        self.phase = Phase::Over;
    }

    /// Handles a frame. Returns a frame of the session for the role to handle.
    pub(crate) fn receive(&mut self, message: Message, now: u64) -> Option<Message> {
        match self.phase {
            Phase::Going => {}
            Phase::Mute { .. } => {
                if matches!(message, Message::Bye {}) {
                    self.end(ControlError::Bye { peer: self.peer() });
                }
                return None;
            }
            Phase::Leaving { .. } | Phase::Over => return None,
        }
        self.heartbeat.note_frame(now);
        match message {
            Message::Error { code, text } => {
                self.out.clear();
                let (peer, text) = (self.peer(), clip(&text));
                self.fail(ControlError::Remote { peer, code, text }, now);
                None
            }
            Message::Bye {} if self.in_session() => {
                self.out.clear();
                self.fail(ControlError::Bye { peer: self.peer() }, now);
                None
            }
            message if self.in_session() => Some(message),
            message => {
                if let Err(e) = self.handle_handshake(message, now) {
                    self.fail(e, now);
                }
                None
            }
        }
    }

    /// Checks the time limits. Returns true when a heartbeat is due.
    pub(crate) fn handle_timeout(&mut self, now: u64) -> bool {
        let (peer, after) = (self.peer(), self.handshake.local.timing.step);
        let late = |peer, waiting_for| ControlError::Timeout {
            peer,
            waiting_for,
            after,
        };
        match &self.phase {
            Phase::Mute { cause, until } if now >= *until => {
                let cause = cause.clone();
                self.end(cause);
            }
            Phase::Leaving { until, .. } if now >= *until => self.phase = Phase::Over,
            Phase::Mute { .. } | Phase::Leaving { .. } | Phase::Over => {}
            Phase::Going if self.send_by().is_some_and(|by| now >= by) => {
                self.end(late(peer, "room to send a frame"));
            }
            Phase::Going if !self.handshake.is_done() => {
                if now >= self.handshake_by {
                    self.fail(late(peer, self.handshake.expected()), now);
                }
            }
            Phase::Going => match self.heartbeat.silence(now) {
                Some(silent) if !self.is_held_up() => {
                    self.fail(ControlError::Silent { peer, silent }, now);
                }
                _ => return self.heartbeat.take_due(now),
            },
        }
        false
    }

    fn send_by(&self) -> Option<u64> {
        let since = self.unsent?;
        Some(since.saturating_add(nanos(self.handshake.local.timing.step)))
    }

    /// Time at which [`Link::handle_timeout`] must be called.
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        let at = match &self.phase {
            Phase::Over => return None,
            Phase::Mute { until, .. } | Phase::Leaving { until, .. } => return Some(*until),
            Phase::Going if !self.in_session() => self.handshake_by,
            Phase::Going if self.is_held_up() => self.heartbeat.next_send,
            Phase::Going => self.heartbeat.next_send.min(self.heartbeat.gone_at()),
        };
        Some(self.send_by().map_or(at, |by| at.min(by)))
    }

    /// Returns each step of the handshake once. A session begins once all frames are sent.
    pub(crate) fn poll_step(&mut self) -> Option<HandshakeStep> {
        let begins = matches!(self.step, Some(HandshakeStep::Connected(_)));
        let sent = self.out.is_empty() && self.unsent.is_none();
        self.step.take_if(|_| sent || !begins)
    }

    /// Returns the cause, once. A bye or an end by this node is reported after its frame is sent.
    pub(crate) fn poll_cause(&mut self) -> Option<ControlError> {
        let cause = self.cause.as_ref()?;
        let chosen = matches!(cause, ControlError::Bye { .. } | ControlError::Ended { .. });
        if self.cause_given || (chosen && matches!(self.phase, Phase::Leaving { shut: false, .. }))
        {
            return None;
        }
        self.cause_given = true;
        Some(cause.clone())
    }

    /// Queues a heartbeat, unless other frames wait: each frame shows that this node is alive.
    pub(crate) fn beat(&mut self, counters: Option<Counters>, scores: Option<Scores>) {
        if self.in_session() && self.out.is_empty() && self.unsent.is_none() {
            let seq = self.heartbeat.next_number();
            self.out.push_back(Message::Heartbeat {
                seq,
                counters,
                scores,
            });
        }
    }

    /// Checks the sequence number of the peer's heartbeat.
    pub(crate) fn check_beat(&mut self, seq: u64) -> Result<(), ControlError> {
        self.heartbeat.check_number(seq).map_err(|expected| {
            let problem = format!("{seq}, expected {expected}");
            self.handshake.field("heartbeat", "seq", problem)
        })
    }

    /// The owner's answer to [`HandshakeStep::Admit`]: admits the frontend, or names the frontend
    /// being served.
    pub(crate) fn admit(&mut self, place: Result<(), String>, now: u64) {
        match place {
            Ok(()) => {
                if let Some(reply) = self.handshake.admit() {
                    self.out.push_back(reply);
                    self.begin(now);
                }
            }
            Err(served) => {
                let text = format!("came while frontend {served} is served");
                let peer_text = format!("frontend {served} is served now: one frontend at a time");
                self.fail(
                    self.handshake.refusing(ErrorCode::Busy, text, peer_text),
                    now,
                );
            }
        }
    }

    fn begin(&mut self, now: u64) {
        self.heartbeat = Heartbeat::new(&self.handshake.local.timing.heartbeat, now);
        self.step = Some(HandshakeStep::Connected(self.handshake.peer_node.clone()));
    }

    /// Handles a frame of the handshake.
    fn handle_handshake(&mut self, message: Message, now: u64) -> Result<(), ControlError> {
        let proved = self.handshake.proved;
        let reply = self.handshake.receive(message)?;
        self.out.extend(reply);
        if !proved && self.handshake.proved {
            self.step = Some(HandshakeStep::Proved);
        }
        if self.handshake.is_done() {
            self.begin(now);
        } else if self.handshake.asks_for_a_place() {
            self.step = Some(HandshakeStep::Admit(self.handshake.peer_node.clone()));
        }
        Ok(())
    }
}
