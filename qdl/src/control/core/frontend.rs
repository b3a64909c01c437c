//! The frontend's side of a session: sends requests, matches answers, reports events.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use crate::control::{
    error::ControlError,
    limits::check,
    message::{Counters, Hex, Message, Role, Scores, clip},
};

use super::{
    Core,
    handshake::LocalNode,
    link::{HandshakeStep, Link},
};

/// Events that a session reports to its frontend.
#[allow(missing_docs, reason = "the names of fields are those of the frames")]
#[derive(Clone, Debug)]
pub enum ClientEvent {
    /// The accelerator has given up a connection.
    ConnectionLost {
        connection: u16,
        epoch: u32,
        cause: String,
    },
    /// The full reason of a sample's refusal, by connection, epoch, slot and use count.
    RefusedSample((u16, u32, u16, u16), String),
    /// The accelerator's end of a lost connection is destroyed, and none of its batches reads the
    /// slots.
    ConnectionReset { connection: u16, epoch: u32 },
    /// A heartbeat with the accelerator's totals.
    Heartbeat(Counters),
    /// Scores of a heartbeat.
    Scores(Scores),
    /// The session is over; always the last event.
    Gone(ControlError),
}

/// Events for the owner; `T` is the owner's token of a request.
#[allow(clippy::large_enum_variant, reason = "an event is moved once")]
#[derive(Debug)]
pub(in crate::control) enum Event<T> {
    /// The session with this accelerator begins.
    Connected(String),
    /// Answer to a request. Each request gets exactly one answer or the cause of the session's end.
    Answer(T, Result<Message, ControlError>),
    Session(ClientEvent),
}

/// A request without an answer.
#[derive(Debug)]
struct WaitingRequest<T> {
    kind: &'static str,
    /// Type of the frame that answers it.
    answer: &'static str,
    /// Number, epoch and slots of each requested connection.
    connections: Vec<(u16, u32, u32)>,
    token: T,
}

/// State machine of the frontend's side of a session.
#[derive(Debug)]
pub(in crate::control) struct Frontend<T> {
    link: Link,
    waiting: HashMap<u64, WaitingRequest<T>>,
    next_id: u64,
    events: VecDeque<Event<T>>,
}

impl<T> Frontend<T> {
    /// Makes the state of a connection to `address`. `nonce` must be random.
    pub(crate) fn new(local: Arc<LocalNode>, address: String, nonce: Hex<32>, now: u64) -> Self {
        Frontend {
            link: Link::new(Role::Frontend, local, address, nonce, now),
            waiting: HashMap::new(),
            next_id: 1,
            events: VecDeque::new(),
        }
    }

    /// Sends a request, which a frame of the type `answer` answers. The event with the result
    /// carries `token`.
    pub(crate) fn ask(
        &mut self,
        answer: &'static str,
        message: impl FnOnce(u64) -> Message,
        token: T,
    ) {
        let id = self.next_id;
        let message = message(id);
        let refused = match (self.link.cause(), check(&message)) {
            (Some(cause), _) => cause.clone(),
            (None, _) if !self.link.has_begun() => {
                ControlError::Local("control: the session has not begun".to_owned())
            }
            // A request that the peer would reject stays here: the caller gets the error.
            (None, Err((field, problem))) => ControlError::Local(format!("{field}: {problem}")),
            (None, Ok(())) => {
                self.next_id += 1;
                let connections = match &message {
                    Message::Open { connections, .. } => connections
                        .iter()
                        .map(|l| (l.connection, l.epoch, l.slots))
                        .collect(),
                    _ => Vec::new(),
                };
                let ask = WaitingRequest {
                    kind: message.kind(),
                    answer,
                    connections,
                    token,
                };
                self.waiting.insert(id, ask);
                return self.link.say(message);
            }
        };
        self.events.push_back(Event::Answer(token, Err(refused)));
    }

    fn tell(&mut self, event: Option<ClientEvent>) {
        self.events.extend(event.map(Event::Session));
    }

    /// Matches an answer with its request. An answer without a matching request ends the session.
    fn answer(&mut self, id: u64, message: Message) -> Result<(), ControlError> {
        let kind = message.kind();
        let fits = self.waiting.get(&id).filter(|ask| ask.answer == kind);
        let Some(ask) = fits else {
            return Err(self.no_such(id, kind));
        };
        if let Message::Opened { connections, .. } = &message {
            let granted = connections.iter().map(|g| (g.connection, g.epoch, g.slots));
            if !granted.eq(ask.connections.iter().copied()) {
                let problem =
                    "are not the connections, epochs and slots that were asked for".to_owned();
                return Err(self.link.handshake.field(kind, "connections", problem));
            }
        }
        let ask = self.waiting.remove(&id);
        self.events
            .extend(ask.map(|ask| Event::Answer(ask.token, Ok(message))));
        Ok(())
    }

    fn no_such(&self, id: u64, kind: &'static str) -> ControlError {
        let problem = format!("{id} is no such request of this session");
        self.link.handshake.field(kind, "id", problem)
    }
}

impl<T> Core for Frontend<T> {
    type Event = Event<T>;

    fn link(&self) -> &Link {
        &self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }

    fn handle_session(&mut self, message: Message, _: u64) -> Result<(), ControlError> {
        match message {
            Message::Opened { id, .. }
            | Message::Ready { id }
            | Message::NameIs { id, .. }
            | Message::Described { id, .. }
            | Message::Drained { id, .. }
            | Message::SideIs { id, .. } => self.answer(id, message),
            Message::Refused { id, code, text } => {
                let Some(ask) = self.waiting.remove(&id) else {
                    return Err(self.no_such(id, "refused"));
                };
                let refused = ControlError::Refused {
                    peer: self.link.peer(),
                    asked: ask.kind,
                    code,
                    text: clip(&text),
                };
                self.events
                    .push_back(Event::Answer(ask.token, Err(refused)));
                Ok(())
            }
            Message::Heartbeat {
                seq,
                counters,
                scores,
            } => {
                self.link.check_beat(seq)?;
                self.tell(counters.map(ClientEvent::Heartbeat));
                self.tell(scores.map(ClientEvent::Scores));
                Ok(())
            }
            Message::ConnectionLost {
                connection,
                epoch,
                cause,
            } => {
                let cause = clip(&cause);
                self.tell(Some(ClientEvent::ConnectionLost {
                    connection,
                    epoch,
                    cause,
                }));
                Ok(())
            }
            Message::RefusedSample {
                connection,
                epoch,
                slot,
                use_count,
                text,
            } => {
                let use_of = (connection, epoch, slot, use_count);
                self.tell(Some(ClientEvent::RefusedSample(use_of, text)));
                Ok(())
            }
            Message::ConnectionReset { connection, epoch } => {
                self.tell(Some(ClientEvent::ConnectionReset { connection, epoch }));
                Ok(())
            }
            other => {
                let expected = "an accelerator's frame of a session";
                Err(self.link.handshake.unexpected(&other, expected))
            }
        }
    }

    fn handle_timeout(&mut self, now: u64) {
        if self.link.handle_timeout(now) {
            self.link.beat(None, None);
        }
    }

    fn poll_event(&mut self) -> Option<Event<T>> {
        if let Some(HandshakeStep::Connected(node)) = self.link.poll_step() {
            return Some(Event::Connected(node));
        }
        if self.events.is_empty()
            && let Some(cause) = self.link.poll_cause()
        {
            let unanswered = self.waiting.drain();
            self.events
                .extend(unanswered.map(|(_, ask)| Event::Answer(ask.token, Err(cause.clone()))));
            self.tell(Some(ClientEvent::Gone(cause)));
        }
        self.events.pop_front()
    }
}
