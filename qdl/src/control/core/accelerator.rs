//! The accelerator's side of a session: handles the frontend's requests in turn.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use fabric::{Imm, MAX_SLOTS};
use record::{BatchSizes, GpuRecord, NodeUse};

use crate::control::{
    error::ControlError,
    limits::{MAX_CONNECTIONS, MAX_GPUS, MAX_NAME, MAX_NODE, check},
    message::{
        ConnectionGrant, ConnectionRequest, Counters, ErrorCode, Hex, Message, Role, Scores, clip,
        clip_to,
    },
};

use super::{
    Core,
    handshake::LocalNode,
    heartbeat::nanos,
    link::{HandshakeStep, Link},
};

/// Most `open` and `start` requests that wait, and most `drain` requests that wait.
const MAX_WAITING: usize = 256;

/// Interval at which the owner is asked whether a drain is done.
const DRAIN_POLL: Duration = Duration::from_millis(2);

/// Refusal of a request; the session goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason as a code.
    pub code: ErrorCode,
    /// Reason in words: the request, the limit, and the key to change.
    pub text: String,
}

impl Refusal {
    /// Makes a refusal.
    pub(crate) fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        let text = text.into();
        Refusal { code, text }
    }
}

/// Events for the owner, including requests to the owner.
#[derive(Debug)]
pub(in crate::control) enum Event {
    /// Progress of the handshake. The owner answers [`HandshakeStep::Admit`] with
    /// [`Accelerator::admit`].
    Handshake(HandshakeStep),
    /// Requests connections, one request at a time; answered with [`Accelerator::opened`].
    Open(Vec<ConnectionRequest>),
    /// Requests the node's part of the SUT's name. The owner answers this request, by its id, and
    /// the next two with [`Accelerator::answer`].
    Name(u64),
    /// Requests the node's description, one request at a time.
    Describe(u64),
    /// Requests this node's side of the run: request id, and offset in bytes.
    Side(u64, u64),
    /// Asks whether every arrived sample is answered. If all samples are, the owner calls
    /// [`Accelerator::drained`]; else the event comes again.
    Drain,
    /// A heartbeat is due; answered with [`Accelerator::beat`].
    Beat,
    /// The frontend has given up a connection.
    ConnectionLost {
        connection: u16,
        epoch: u32,
        cause: String,
    },
    /// The frontend's end of this connection is destroyed and uses no slots.
    ConnectionReset { connection: u16, epoch: u32 },
    /// The frontend cancels the sample of this slot and use count.
    Cancel {
        connection: u16,
        epoch: u32,
        imm: Imm,
    },
    /// The session is over; always the last event.
    Gone(ControlError),
}

/// A request that waits for its turn.
#[derive(Debug)]
enum WaitingRequest {
    Open(u64, Vec<ConnectionRequest>),
    Start(u64),
}

/// Epochs of one connection.
#[derive(Debug, Default)]
struct Connection {
    /// Last granted epoch, 0 for none.
    opened: u32,
    /// Highest requested epoch.
    asked: u32,
    /// Requested epochs without an answer.
    pending: Vec<u32>,
    /// The frontend's lost messages (with a cause) and reset messages for pending epochs.
    held: Vec<(u32, Option<String>)>,
}

/// State machine of the accelerator's side of a session.
#[derive(Debug)]
pub(in crate::control) struct Accelerator {
    link: Link,
    connections: HashMap<u16, Connection>,
    /// A start was requested and not refused.
    started: bool,
    waiting: VecDeque<WaitingRequest>,
    /// The open in progress at the owner: request id, connections and epochs.
    working: Option<(u64, Vec<(u16, u32)>)>,
    draining: Vec<u64>,
    /// The describe request in progress at the owner.
    describing: Option<u64>,
    /// Time of the next drain query.
    drain_at: u64,
    events: VecDeque<Event>,
}

impl Accelerator {
    /// Makes the state of a connection from `address`. `nonce` must be random.
    pub(crate) fn new(local: Arc<LocalNode>, address: String, nonce: Hex<32>, now: u64) -> Self {
        Accelerator {
            link: Link::new(Role::Accelerator, local, address, nonce, now),
            connections: HashMap::new(),
            started: false,
            waiting: VecDeque::new(),
            working: None,
            draining: Vec::new(),
            describing: None,
            drain_at: 0,
            events: VecDeque::new(),
        }
    }

    /// Answers [`HandshakeStep::Admit`]: admits the frontend, or names the frontend being served.
    pub(crate) fn admit(&mut self, place: Result<(), String>, now: u64) {
        self.link.admit(place, now);
    }

    /// Answers [`Event::Open`].
    pub(crate) fn opened(&mut self, answer: Result<Vec<ConnectionGrant>, Refusal>) {
        if let Some((id, connections)) = self.working.take()
            && self.link.in_session()
        {
            self.open_done(id, &connections, answer);
            self.start_waiting();
        }
    }

    /// Answers a request. An answer outside its limits becomes a refusal, so that the session goes
    /// on.
    pub(crate) fn answer(&mut self, id: u64, answer: Result<Message, Refusal>) {
        self.describing.take_if(|describing| *describing == id);
        let answer = answer.and_then(|message| match check(&message) {
            Ok(()) => Ok(message),
            Err((field, problem)) => {
                let text = format!("the accelerator's {field}: {problem}");
                Err(Refusal::new(ErrorCode::Protocol, text))
            }
        });
        match answer {
            Ok(message) => self.link.say(message),
            Err(refusal) => self.refuse(id, &refusal),
        }
    }

    fn refuse(&mut self, id: u64, refusal: &Refusal) {
        let (code, text) = (refusal.code, clip(&refusal.text));
        self.link.say(Message::Refused { id, code, text });
    }

    /// Answers every pending drain. Clips names of GPUs and threads, which come from drivers and
    /// the system, to the frontend's limits.
    pub(crate) fn drained(
        &mut self,
        counters: Counters,
        batches: &BatchSizes,
        mut gpus: Vec<GpuRecord>,
        mut used: NodeUse,
    ) {
        gpus.truncate(MAX_GPUS);
        for gpu in &mut gpus {
            gpu.name = clip_to(&gpu.name, MAX_NAME);
        }
        for group in &mut used.threads {
            group.name = clip_to(&group.name, MAX_NODE);
        }
        for id in std::mem::take(&mut self.draining) {
            let drained = Message::Drained {
                id,
                counters,
                batches: batches.clone(),
                gpus: gpus.clone(),
                used: used.clone(),
            };
            self.answer(id, Ok(drained));
        }
    }

    /// Answers [`Event::Beat`].
    pub(crate) fn beat(&mut self, counters: Counters, scores: Option<Scores>) {
        self.link.beat(Some(counters), scores);
    }

    fn check_room(&self, waiting: usize, kind: &'static str) -> Result<(), ControlError> {
        if waiting < MAX_WAITING {
            return Ok(());
        }
        let problem = format!("{MAX_WAITING} such requests wait already");
        Err(self.link.handshake.field(kind, "id", problem))
    }

    /// Handles waiting requests in order, up to an `open`, on which the owner then works.
    fn start_waiting(&mut self) {
        while self.working.is_none() {
            // Check in turn, since earlier requests may change the result.
            match self.waiting.pop_front() {
                None => return,
                Some(WaitingRequest::Start(id)) => {
                    self.started = self.connections.values().any(|l| l.opened > 0);
                    let answer = match self.started {
                        true => Ok(Message::Ready { id }),
                        false => Err(Refusal::new(ErrorCode::Protocol, "no connection is open")),
                    };
                    self.answer(id, answer);
                }
                Some(WaitingRequest::Open(id, connections)) => {
                    let epochs: Vec<_> = connections
                        .iter()
                        .map(|l| (l.connection, l.epoch))
                        .collect();
                    match self.check_open(&epochs) {
                        Ok(()) => {
                            self.working = Some((id, epochs));
                            self.events.push_back(Event::Open(connections));
                        }
                        Err(refusal) => {
                            self.open_done(id, &epochs, Err(refusal));
                        }
                    }
                }
            }
        }
    }

    /// Checks that epochs grow and that the session does not exceed its number of connections.
    fn check_open(&self, connections: &[(u16, u32)]) -> Result<(), Refusal> {
        let opened = |connection: u16| self.connections.get(&connection).map_or(0, |l| l.opened);
        for &(connection, epoch) in connections {
            let last = opened(connection);
            if epoch <= last {
                let text = format!(
                    "connection {connection}: epoch {epoch} does not come after epoch {last}"
                );
                return Err(Refusal::new(ErrorCode::Protocol, text));
            }
        }
        let there = self.connections.values().filter(|l| l.opened > 0).count();
        let total = there + connections.iter().filter(|l| opened(l.0) == 0).count();
        if total > MAX_CONNECTIONS {
            let text = format!("{total} connections, a session has at most {MAX_CONNECTIONS}");
            return Err(Refusal::new(ErrorCode::Budget, text));
        }
        Ok(())
    }

    /// Answers an open, then handles the frontend's held messages about its connections.
    fn open_done(
        &mut self,
        id: u64,
        connections: &[(u16, u32)],
        answer: Result<Vec<ConnectionGrant>, Refusal>,
    ) {
        let granted = answer.is_ok();
        match answer {
            Ok(connections) => self.link.say(Message::Opened { id, connections }),
            Err(refusal) => self.refuse(id, &refusal),
        }
        for &(number, epoch) in connections {
            let Some(connection) = self.connections.get_mut(&number) else {
                continue;
            };
            if granted {
                connection.opened = connection.opened.max(epoch);
            }
            if let Some(at) = connection.pending.iter().position(|e| *e == epoch) {
                connection.pending.swap_remove(at);
            }
            if connection.pending.contains(&epoch) {
                continue;
            }
            let held: Vec<_> = connection
                .held
                .extract_if(.., |(e, _)| *e == epoch)
                .collect();
            for (epoch, cause) in held {
                self.pass_on(number, epoch, cause);
            }
        }
    }

    /// Handles a connection_lost or connection_reset frame, or holds it until its open is answered.
    fn connection_note(
        &mut self,
        kind: &'static str,
        number: u16,
        epoch: u32,
        cause: Option<String>,
    ) -> Result<(), ControlError> {
        let Some(connection) = self.connections.get_mut(&number) else {
            let problem = format!("connection {number} was never opened");
            return Err(self.link.handshake.field(kind, "connection", problem));
        };
        if epoch > connection.asked {
            let problem = format!(
                "connection {number} is at epoch {}, this says {epoch}",
                connection.asked
            );
            return Err(self.link.handshake.field(kind, "epoch", problem));
        }
        if !connection.pending.contains(&epoch) {
            self.pass_on(number, epoch, cause);
            return Ok(());
        }
        let known = |(e, c): &(u32, Option<String>)| (*e, c.is_some()) == (epoch, cause.is_some());
        if !connection.held.iter().any(known) {
            connection.held.push((epoch, cause));
        }
        Ok(())
    }

    /// Handles a lost frame (with `cause`) or a reset frame for an epoch whose open is answered.
    fn pass_on(&mut self, connection: u16, epoch: u32, cause: Option<String>) {
        let opened = self.connections.get(&connection).map_or(0, |l| l.opened);
        if epoch == opened {
            self.events.push_back(match cause {
                Some(cause) => Event::ConnectionLost {
                    connection,
                    epoch,
                    cause,
                },
                None => Event::ConnectionReset { connection, epoch },
            });
        } else if epoch > opened && cause.is_some() {
            // The open was refused, so no end exists here; the frontend may wait for this reset.
            self.link.connection_reset(connection, epoch);
        }
    }
}

impl Core for Accelerator {
    type Event = Event;

    fn link(&self) -> &Link {
        &self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }

    fn handle_session(&mut self, message: Message, now: u64) -> Result<(), ControlError> {
        match message {
            Message::Open { id, connections } => {
                self.check_room(self.waiting.len(), "open")?;
                for l in &connections {
                    let connection = self.connections.entry(l.connection).or_default();
                    connection.asked = connection.asked.max(l.epoch);
                    connection.pending.push(l.epoch);
                }
                self.waiting
                    .push_back(WaitingRequest::Open(id, connections));
                self.start_waiting();
                Ok(())
            }
            Message::Start { id } => {
                if self.started {
                    let problem = "a session starts once".to_owned();
                    return Err(self.link.handshake.field("start", "id", problem));
                }
                self.check_room(self.waiting.len(), "start")?;
                self.started = true;
                self.waiting.push_back(WaitingRequest::Start(id));
                self.start_waiting();
                Ok(())
            }
            Message::Name { id } => {
                self.events.push_back(Event::Name(id));
                Ok(())
            }
            Message::Side { id, at } => {
                self.events.push_back(Event::Side(id, at));
                Ok(())
            }
            Message::Drain { id } => {
                self.check_room(self.draining.len(), "drain")?;
                if self.draining.is_empty() {
                    self.drain_at = now;
                }
                self.draining.push(id);
                Ok(())
            }
            Message::Describe { id } => {
                if self.describing.is_some() {
                    let problem = "one such request waits already".to_owned();
                    return Err(self.link.handshake.field("describe", "id", problem));
                }
                self.describing = Some(id);
                self.events.push_back(Event::Describe(id));
                Ok(())
            }
            Message::Heartbeat {
                seq,
                counters,
                scores,
            } => {
                self.link.check_beat(seq)?;
                if counters.is_some() || scores.is_some() {
                    let problem = "come from an accelerator alone".to_owned();
                    return Err(self.link.handshake.field(
                        "heartbeat",
                        "counters, scores",
                        problem,
                    ));
                }
                Ok(())
            }
            Message::ConnectionLost {
                connection,
                epoch,
                cause,
            } => self.connection_note("connection_lost", connection, epoch, Some(clip(&cause))),
            Message::ConnectionReset { connection, epoch } => {
                self.connection_note("connection_reset", connection, epoch, None)
            }
            Message::Cancel {
                connection,
                epoch,
                slot,
                use_count,
            } => {
                // A cancel of another epoch comes late: its sample ended with its connection.
                let opened = self.connections.get(&connection).map(|c| c.opened);
                if opened == Some(epoch) && usize::from(slot) < MAX_SLOTS {
                    self.events.push_back(Event::Cancel {
                        connection,
                        epoch,
                        imm: Imm::new(slot, use_count),
                    });
                }
                Ok(())
            }
            other => {
                let expected = "a frontend's frame of a session";
                Err(self.link.handshake.unexpected(&other, expected))
            }
        }
    }

    fn handle_timeout(&mut self, now: u64) {
        if self.link.handle_timeout(now) {
            self.events.push_back(Event::Beat);
        }
        if self.link.in_session() && !self.draining.is_empty() && now >= self.drain_at {
            self.drain_at = now.saturating_add(nanos(DRAIN_POLL));
            self.events.push_back(Event::Drain);
        }
    }

    fn poll_timeout(&self) -> Option<u64> {
        let at = self.link.poll_timeout()?;
        let draining = self.link.in_session() && !self.draining.is_empty();
        Some(if draining { at.min(self.drain_at) } else { at })
    }

    fn poll_event(&mut self) -> Option<Event> {
        if let Some(step) = self.link.poll_step() {
            return Some(Event::Handshake(step));
        }
        let next = self.events.pop_front();
        next.or_else(|| self.link.poll_cause().map(Event::Gone))
    }
}
