//! What both roles have in common: the handshake, the order of frames to send, signs of life, the
//! end.

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use crate::control::{
    error::{ControlError, Peer},
    frame::FrameError,
    message::{Counters, ErrorCode, Hex, Message, Role, Scores, clip},
};
use record::NodeFacts;

use super::{
    handshake::{Handshake, Local, Own},
    heartbeat::{Heartbeat, nanos},
};

/// How long what the peer still sends is read away when a session ends. Without it the system may
/// answer the peer with a reset, and the peer would never read why.
const LINGER: Duration = Duration::from_millis(500);

/// How long a peer that takes nothing any more is listened to: it may have said goodbye.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Frames waiting to be sent beyond which an accelerator takes no more requests.
const MAX_OUT: usize = 256;

/// Progress of the handshake that the owner hears of.
#[derive(Debug)]
pub enum Step {
    /// The frontend has proved who it is.
    Proved,
    /// An accelerator asks whether the frontend of this name may be served.
    Admit(String),
    /// The session begins, with the peer of this name.
    Connected(String),
}

#[derive(Debug)]
enum Phase {
    Going,
    /// Nothing can be sent any more, but what the peer said last is still read.
    Mute {
        cause: ControlError,
        until: u64,
    },
    /// The cause is known. `shut`: all is said, and the peer's rest is read away.
    Leaving {
        until: u64,
        shut: bool,
    },
    Over,
}

/// See the module.
#[derive(Debug)]
pub struct Link {
    handshake: Handshake,
    handshake_by: u64,
    step: Option<Step>,
    out: VecDeque<Message>,
    /// Since when frames that were handed out have not all been taken by the system.
    unsent: Option<u64>,
    heartbeat: Heartbeat,
    phase: Phase,
    cause: Option<ControlError>,
    cause_given: bool,
}

impl Link {
    /// A connection was made. `nonce` is random. A frontend says hello at once.
    pub fn new(role: Role, local: Arc<Local>, address: String, nonce: Hex<32>, now: u64) -> Self {
        let heartbeat = Heartbeat::new(&local.heartbeat, now);
        let handshake_by = now.saturating_add(nanos(local.deadline));
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
    pub fn peer(&self) -> Peer {
        self.handshake.peer.clone()
    }

    /// What the peer said beside its model, once it has.
    pub fn peer_own(&self) -> Option<&Own> {
        self.handshake.peer_own.as_ref()
    }

    /// What the peer says of itself and its machine, once it has.
    pub fn peer_facts(&self) -> &NodeFacts {
        &self.handshake.peer_facts
    }

    /// The peer has proved who it is: its frames may have their full length.
    pub fn is_proved(&self) -> bool {
        self.handshake.proved
    }

    /// The handshake is over and the session is not.
    pub fn in_session(&self) -> bool {
        self.handshake.is_done() && matches!(self.phase, Phase::Going)
    }

    /// Why the session is over, if it is.
    pub fn cause(&self) -> Option<&ControlError> {
        self.cause.as_ref()
    }

    /// May more be read? Not while a peer takes no answers.
    pub fn wants_input(&self) -> bool {
        match self.phase {
            Phase::Going => !self.is_held_up(),
            Phase::Mute { .. } | Phase::Leaving { .. } => true,
            Phase::Over => false,
        }
    }

    /// The cause is known: what comes is not looked at any more.
    pub fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving { .. })
    }

    /// All is said: this direction of the connection is to be shut down.
    pub fn is_shut(&self) -> bool {
        matches!(self.phase, Phase::Leaving { shut: true, .. })
    }

    /// Nothing is left to do: the connection is to be closed.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    fn is_held_up(&self) -> bool {
        self.handshake.role == Role::Accelerator && self.out.len() >= MAX_OUT
    }

    /// Sends a frame of the session; after its end there is nobody to send it to.
    pub fn say(&mut self, message: Message) {
        if self.in_session() {
            self.out.push_back(message);
        }
    }

    /// The next frame to send.
    pub fn poll_transmit(&mut self, now: u64) -> Option<Message> {
        let message = self.out.pop_front()?;
        self.unsent.get_or_insert(now);
        Some(message)
    }

    /// Frames wait to be sent.
    #[cfg(all(test, not(qdl_loom)))]
    pub fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// The system has taken all that was handed out.
    pub fn flushed(&mut self, now: u64) {
        self.unsent = None;
        if let Phase::Leaving { until, shut } = &mut self.phase
            && self.out.is_empty()
            && !*shut
        {
            (*until, *shut) = (now.saturating_add(nanos(LINGER)), true);
        }
    }

    /// Ends the session; the peer is told why where there is something to tell.
    pub fn fail(&mut self, cause: ControlError, now: u64) {
        if self.cause.is_some() {
            return;
        }
        if let Some((code, text)) = cause.for_peer(self.handshake.role) {
            self.out.push_back(Message::Error { code, text });
        }
        self.cause = Some(cause);
        self.phase = Phase::Leaving {
            until: now.saturating_add(nanos(self.handshake.local.deadline)),
            shut: false,
        };
    }

    /// Ends the session at once: there is nobody left who could be told.
    fn end(&mut self, cause: ControlError) {
        self.out.clear();
        self.cause.get_or_insert(cause);
        self.phase = Phase::Over;
    }

    /// This node has given up a connection.
    pub fn connection_lost(&mut self, connection: u16, epoch: u32, cause: &str) {
        let cause = clip(cause);
        self.say(Message::ConnectionLost {
            connection,
            epoch,
            cause,
        });
    }

    /// This node's end of a lost connection is torn down and nothing here uses its slots.
    pub fn connection_reset(&mut self, connection: u16, epoch: u32) {
        self.say(Message::ConnectionReset { connection, epoch });
    }

    /// Ends the session and tells the peer why.
    pub fn close(&mut self, code: ErrorCode, text: &str, now: u64) {
        let (peer, text) = (self.peer(), clip(text));
        self.fail(ControlError::Ended { peer, code, text }, now);
    }

    /// Takes leave.
    pub fn bye(&mut self, now: u64) {
        self.say(Message::Bye {});
        self.fail(ControlError::Bye { peer: self.peer() }, now);
    }

    /// The peer has closed the connection.
    pub fn closed(&mut self) {
        let (peer, waiting_for) = (self.peer(), self.handshake.expected());
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Mute { cause, .. } => self.end(cause),
            _ if self.handshake.is_done() => self.end(ControlError::Vanished { peer }),
            _ => self.end(ControlError::Closed { peer, waiting_for }),
        }
    }

    /// What a failing socket says of the peer: where the session had begun and the peer's side is
    /// no more, its program is not either.
    fn broken(&self, doing: &'static str, source: Arc<io::Error>) -> ControlError {
        let peer = self.peer();
        let no_more = matches!(
            source.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
        );
        match self.handshake.is_done() && no_more {
            true => ControlError::Vanished { peer },
            false => ControlError::Io {
                peer,
                doing,
                source,
            },
        }
    }

    /// What the peer sent is no frame, or what is to be sent is none.
    pub fn bad_frame(&mut self, e: FrameError, now: u64) {
        let peer = self.peer();
        match e {
            FrameError::Io(source) => self.end(self.broken("receiving", source)),
            FrameError::Version { theirs } => {
                self.fail(ControlError::Version { peer, theirs }, now);
            }
            source => self.fail(ControlError::Frame { peer, source }, now),
        }
    }

    /// Nothing more can be sent. A peer that said goodbye and closed may leave this node in the
    /// middle of a frame, so what it said is read before the failure counts.
    pub fn write_failed(&mut self, e: io::Error, now: u64) {
        self.out.clear();
        self.unsent = None;
        if !matches!(self.phase, Phase::Going) {
            self.phase = Phase::Over;
            return;
        }
        self.phase = Phase::Mute {
            cause: self.broken("sending", Arc::new(e)),
            until: now.saturating_add(nanos(LAST_WORDS)),
        };
    }

    /// Enough of the peer's rest was read away.
    pub fn left(&mut self) {
        self.phase = Phase::Over;
    }

    /// Takes a frame. It is given back if it is one of the session, for the role to handle.
    pub fn receive(&mut self, message: Message, now: u64) -> Option<Message> {
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
        self.heartbeat.heard(now);
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
                if let Err(e) = self.shake(message, now) {
                    self.fail(e, now);
                }
                None
            }
        }
    }

    /// Time has passed. True when a heartbeat is due.
    pub fn handle_timeout(&mut self, now: u64) -> bool {
        let (peer, after) = (self.peer(), self.handshake.local.deadline);
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
            Phase::Going => match self.heartbeat.gone(now) {
                Some(silent) if !self.is_held_up() => {
                    self.fail(ControlError::Silent { peer, silent }, now);
                }
                _ => return self.heartbeat.due(now),
            },
        }
        false
    }

    fn send_by(&self) -> Option<u64> {
        let since = self.unsent?;
        Some(since.saturating_add(nanos(self.handshake.local.deadline)))
    }

    /// When [`Link::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<u64> {
        let at = match &self.phase {
            Phase::Over => return None,
            Phase::Mute { until, .. } | Phase::Leaving { until, .. } => return Some(*until),
            Phase::Going if !self.in_session() => self.handshake_by,
            Phase::Going if self.is_held_up() => self.heartbeat.next_send(),
            Phase::Going => self.heartbeat.next_send().min(self.heartbeat.gone_at()),
        };
        Some(self.send_by().map_or(at, |by| at.min(by)))
    }

    /// Progress of the handshake, once each. A session begins when all of the handshake is sent.
    pub fn step(&mut self) -> Option<Step> {
        let begins = matches!(self.step, Some(Step::Connected(_)));
        let sent = self.out.is_empty() && self.unsent.is_none();
        self.step.take_if(|_| sent || !begins)
    }

    /// The cause, once: at once, but for an end that this node chose, which is to be said first.
    pub fn gone(&mut self) -> Option<ControlError> {
        let cause = self.cause.as_ref()?;
        let chosen = matches!(cause, ControlError::Bye { .. } | ControlError::Ended { .. });
        if self.cause_given || (chosen && matches!(self.phase, Phase::Leaving { shut: false, .. }))
        {
            return None;
        }
        self.cause_given = true;
        Some(cause.clone())
    }

    /// Sends a heartbeat, unless other frames wait to be sent: each of them is as good a sign of
    /// life.
    pub fn beat(&mut self, counters: Option<Counters>, scores: Option<Scores>) {
        if self.in_session() && self.out.is_empty() && self.unsent.is_none() {
            let seq = self.heartbeat.next_number();
            self.out.push_back(Message::Heartbeat {
                seq,
                counters,
                scores,
            });
        }
    }

    /// A heartbeat came.
    pub fn beaten(&mut self, seq: u64) -> Result<(), ControlError> {
        self.heartbeat.number(seq).map_err(|e| {
            let problem = format!("{}, expected {}", e.got, e.expected);
            self.field("heartbeat", "seq", problem)
        })
    }

    /// A field that makes no sense at this point.
    pub fn field(&self, kind: &'static str, field: &'static str, problem: String) -> ControlError {
        ControlError::Field {
            peer: self.peer(),
            kind,
            field,
            problem,
        }
    }

    /// A frame that does not belong here.
    pub fn unexpected(&self, got: &Message, expected: &'static str) -> ControlError {
        ControlError::Unexpected {
            peer: self.peer(),
            got: got.kind(),
            expected,
        }
    }

    /// The owner's answer to [`Step::Admit`]: the frontend is served, or the name of the one that
    /// is.
    pub fn admit(&mut self, place: Result<(), String>, now: u64) {
        match place {
            Ok(()) => {
                if let Some(reply) = self.handshake.admit() {
                    self.out.push_back(reply);
                    self.begin(now);
                }
            }
            Err(served) => {
                let peer = self.peer();
                self.fail(ControlError::Busy { peer, served }, now);
            }
        }
    }

    fn begin(&mut self, now: u64) {
        self.heartbeat = Heartbeat::new(&self.handshake.local.heartbeat, now);
        self.step = Some(Step::Connected(self.handshake.peer_node.clone()));
    }

    /// A frame of the handshake.
    fn shake(&mut self, message: Message, now: u64) -> Result<(), ControlError> {
        let proved = self.handshake.proved;
        let reply = self.handshake.receive(message)?;
        self.out.extend(reply);
        if !proved && self.handshake.proved {
            self.step = Some(Step::Proved);
        }
        if self.handshake.is_done() {
            self.begin(now);
        } else if self.handshake.asks_for_a_place() {
            self.step = Some(Step::Admit(self.handshake.peer_node.clone()));
        }
        Ok(())
    }
}
