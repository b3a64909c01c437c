//! The frontend's side of a session: connect, ask, listen.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::TcpStream,
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};

use crate::{clock::now_ns, model::ModelSpec};

use super::{
    ControlError, Timing,
    auth::Auth,
    error::Peer,
    handshake::{Local, join, unexpected},
    heartbeat::{Health, Heartbeat, HeartbeatCfgs},
    limits::check,
    message::{Counters, ErrorCode, LaneGrant, LaneRequest, Message, Role, clip},
    pending::{Ended, Pending, Reply, ReplySender},
    server::check_params,
    session::out_of_order,
    wire::Wire,
};

/// Events kept for a reader that is slow; heartbeats beyond are dropped, anything else ends the session.
const MAX_EVENTS: usize = 4096;

/// Most commands sent before the peer is listened to again.
const BURST: usize = 64;

/// Gives this node's totals for a heartbeat; called on the session's task.
pub type CountersFn = Arc<dyn Fn() -> Counters + Send + Sync>;

/// What a frontend brings to a session.
#[derive(Clone)]
pub struct ClientParams {
    /// The accelerator's `control.listen`: `host:port`.
    pub address: String,
    /// This node's name.
    pub node: String,
    /// How both sides prove who they are.
    pub auth: Auth,
    /// The model of this run.
    pub model: ModelSpec,
    /// Deadlines and heartbeat.
    pub timing: Timing,
    /// Totals for this node's heartbeats.
    pub counters: CountersFn,
}

/// A session with one accelerator. A task on the runtime it was made on keeps it alive.
#[derive(Debug)]
pub struct ClientSession {
    /// The accelerator's node name.
    pub peer_node: String,
    /// The accelerator's address.
    pub peer_address: SocketAddr,
    /// The accelerator's model; it is this node's too.
    pub peer_model: ModelSpec,
    /// For asking.
    pub handle: ClientHandle,
    /// What happens.
    pub events: ClientEvents,
}

/// What a session tells its frontend.
#[derive(Clone, Debug)]
pub enum ClientEvent {
    /// The accelerator has given up a connection.
    LaneLost {
        /// Which.
        lane: u16,
        /// Which life of it.
        epoch: u32,
        /// In words.
        cause: String,
    },
    /// The accelerator's end of a lost connection is torn down and none of its batches reads the slots.
    LaneReset {
        /// Which.
        lane: u16,
        /// Which life of it.
        epoch: u32,
    },
    /// A heartbeat came.
    Heartbeat(Counters),
    /// The accelerator has fallen silent, or was heard again.
    Health(Health),
    /// The session is over. Always the last event, and always there.
    Gone(ControlError),
}

/// The events of one session, in order.
#[derive(Debug)]
pub struct ClientEvents {
    events: mpsc::Receiver<ClientEvent>,
    ended: Arc<Ended>,
    told: bool,
}

impl ClientEvents {
    /// Waits for the next event; `None` after [`ClientEvent::Gone`].
    pub async fn next(&mut self) -> Option<ClientEvent> {
        match self.events.recv().await {
            Some(event) => Some(event),
            None => self.last(),
        }
    }

    /// Waits for the next event on a thread that runs no tasks.
    pub fn blocking_next(&mut self) -> Option<ClientEvent> {
        match self.events.blocking_recv() {
            Some(event) => Some(event),
            None => self.last(),
        }
    }

    /// The next event if there is one now.
    pub fn try_next(&mut self) -> Option<ClientEvent> {
        match self.events.try_recv() {
            Ok(event) => Some(event),
            Err(mpsc::error::TryRecvError::Empty) => None,
            Err(mpsc::error::TryRecvError::Disconnected) => self.last(),
        }
    }

    fn last(&mut self) -> Option<ClientEvent> {
        (!std::mem::replace(&mut self.told, true)).then(|| ClientEvent::Gone(self.ended.cause()))
    }
}

/// Asks the accelerator from any thread. When the last one is dropped the session says bye and ends.
#[derive(Clone, Debug)]
pub struct ClientHandle {
    commands: mpsc::UnboundedSender<Command>,
    ended: Arc<Ended>,
}

#[derive(Debug)]
enum Command {
    Ask(Ask, ReplySender),
    Say(Message),
    Bye,
    Close(ErrorCode, String),
}

/// A request that waits for its answer.
#[derive(Debug)]
enum Ask {
    Open(Vec<LaneRequest>),
    Start,
    Name,
    Drain,
}

impl ClientHandle {
    /// Asks for connections; all of them are granted, in this order, or none.
    pub fn open(&self, lanes: Vec<LaneRequest>) -> Pending<Vec<LaneGrant>> {
        self.ask(Ask::Open(lanes), "opened", |r| match r {
            Reply::Opened(lanes) => Some(lanes),
            _ => None,
        })
    }

    /// Says that all data connections are up; answered when the accelerator is ready to serve.
    pub fn start(&self) -> Pending<()> {
        self.ask(Ask::Start, "ready", |r| {
            matches!(r, Reply::Ready).then_some(())
        })
    }

    /// Asks the accelerator for its part of the SUT's name: one round trip for each call.
    pub fn name(&self) -> Pending<String> {
        self.ask(Ask::Name, "name_is", |r| match r {
            Reply::Name(name) => Some(name),
            _ => None,
        })
    }

    /// Asks the accelerator to answer all that has arrived.
    pub fn drain(&self) -> Pending<Counters> {
        self.ask(Ask::Drain, "drained", |r| match r {
            Reply::Drained(counters) => Some(counters),
            _ => None,
        })
    }

    /// This node has given up a connection.
    pub fn lane_lost(&self, lane: u16, epoch: u32, cause: &str) {
        self.command(Command::Say(Message::LaneLost {
            lane,
            epoch,
            cause: clip(cause),
        }));
    }

    /// This node's end of a lost connection is torn down and nothing here uses its slots.
    pub fn lane_reset(&self, lane: u16, epoch: u32) {
        self.command(Command::Say(Message::LaneReset { lane, epoch }));
    }

    /// Ends the session; the accelerator serves the next frontend. [`ClientEvent::Gone`] follows.
    pub fn bye(&self) {
        self.command(Command::Bye);
    }

    /// Ends the session and tells the accelerator what was wrong.
    pub fn close(&self, code: ErrorCode, text: &str) {
        self.command(Command::Close(code, clip(text)));
    }

    /// Why the session is over, if it is.
    pub fn ended(&self) -> Option<ControlError> {
        self.ended.if_over()
    }

    fn ask<T>(
        &self,
        ask: Ask,
        waiting_for: &'static str,
        take: fn(Reply) -> Option<T>,
    ) -> Pending<T> {
        let (sender, answer) = oneshot::channel();
        self.command(Command::Ask(ask, sender));
        Pending::new(answer, take, waiting_for, self.ended.clone())
    }

    fn command(&self, command: Command) {
        // After the end there is nobody to take it: whoever waits for an answer is told by the channel.
        let _ = self.commands.send(command);
    }
}

impl ClientSession {
    /// Connects, authenticates both ways and compares models. Must be called on a tokio runtime, which has
    /// to go on running for as long as the session does.
    ///
    /// # Errors
    /// [`ControlError`] names the address, what was waited for or refused, and what to do.
    pub async fn connect(params: ClientParams) -> Result<ClientSession, ControlError> {
        let ClientParams {
            address,
            node,
            auth,
            model,
            timing,
            counters,
        } = params;
        check_params(&node, &timing)?;
        let stream = match timeout(timing.connect, TcpStream::connect(&*address)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(e)) => {
                return Err(ControlError::Connect {
                    peer: Peer::at(&address),
                    source: Arc::new(e),
                });
            }
            Err(_) => {
                return Err(ControlError::Timeout {
                    peer: Peer::at(&address),
                    waiting_for: "connection",
                    after: timing.connect,
                });
            }
        };
        let peer_address = stream.peer_addr().map_err(|e| ControlError::Connect {
            peer: Peer::at(&address),
            source: Arc::new(e),
        })?;
        auth.check(peer_address.ip())?;
        let mut wire = Wire::new(stream, address, timing.handshake)?;
        let local = Local {
            role: Role::Frontend,
            node,
            auth,
            model,
            heartbeat: timing.heartbeat,
            deadline: timing.handshake,
        };
        let known = match join(&mut wire, &local).await {
            Ok(known) => known,
            Err(e) => {
                wire.close(&e, Role::Frontend).await;
                return Err(e);
            }
        };
        let ended = Arc::new(Ended::new(wire.peer()));
        let (commands, inbox) = mpsc::unbounded_channel();
        let (sender, events) = mpsc::channel(MAX_EVENTS);
        tokio::spawn(run(
            wire,
            inbox,
            sender,
            ended.clone(),
            timing.heartbeat,
            counters,
        ));
        Ok(ClientSession {
            peer_node: known.node,
            peer_address,
            peer_model: known.model,
            handle: ClientHandle {
                commands,
                ended: ended.clone(),
            },
            events: ClientEvents {
                events,
                ended,
                told: false,
            },
        })
    }
}

/// The session's task.
async fn run(
    mut wire: Wire,
    mut inbox: mpsc::UnboundedReceiver<Command>,
    events: mpsc::Sender<ClientEvent>,
    ended: Arc<Ended>,
    heartbeat: HeartbeatCfgs,
    counters: CountersFn,
) {
    let mut talk = Talk {
        heartbeat: Heartbeat::new(&heartbeat, now_ns()),
        peer: wire.peer(),
        events,
        counters,
        waiting: HashMap::new(),
        next_id: 1,
    };
    let cause = loop {
        if let Err(cause) = talk.turn(&mut wire, &mut inbox).await {
            break cause;
        }
    };
    // First the cause, then the channels: whoever finds one closed finds the cause.
    ended.set(cause.clone());
    drop((talk, inbox));
    wire.close(&cause, Role::Frontend).await;
}

struct Talk {
    heartbeat: Heartbeat,
    peer: Peer,
    events: mpsc::Sender<ClientEvent>,
    counters: CountersFn,
    waiting: HashMap<u64, (Ask, ReplySender)>,
    next_id: u64,
}

impl Talk {
    async fn turn(
        &mut self,
        wire: &mut Wire,
        inbox: &mut mpsc::UnboundedReceiver<Command>,
    ) -> Result<(), ControlError> {
        if let Some(seq) = self.heartbeat.due(now_ns()) {
            let counters = (self.counters)();
            wire.send(&Message::Heartbeat { seq, counters }).await?;
        }
        // Our own words first, a few at a time, so that a peer that never stops talking is answered.
        for _ in 0..BURST {
            match inbox.try_recv() {
                Ok(command) => self.command(wire, command).await?,
                Err(_) => break,
            }
        }
        let wake = self.heartbeat.next_at().saturating_sub(now_ns());
        let wake = Instant::now() + Duration::from_nanos(wake);
        // What the peer has sent is read before its silence is judged: this process may have been the one
        // that slept.
        tokio::select! { biased;
            message = wire.recv("the end of the session") => {
                let message = message?;
                if self.heartbeat.heard(now_ns()) {
                    self.tell(ClientEvent::Health(Health::Alive))?;
                }
                self.handle(wire, message)
            }
            command = inbox.recv() => self.command(wire, command.unwrap_or(Command::Bye)).await,
            () = sleep_until(wake) => self.judge(),
        }
    }

    fn judge(&mut self) -> Result<(), ControlError> {
        let now = now_ns();
        match self.heartbeat.check(now) {
            Some(Health::Gone) => Err(ControlError::Silent {
                peer: self.peer.clone(),
                silent: Duration::from_nanos(self.heartbeat.silent(now)),
            }),
            Some(health) => self.tell(ClientEvent::Health(health)),
            None => Ok(()),
        }
    }

    async fn command(&mut self, wire: &mut Wire, command: Command) -> Result<(), ControlError> {
        match command {
            Command::Ask(ask, sender) => {
                let id = self.next_id;
                self.next_id += 1;
                let message = match &ask {
                    Ask::Open(lanes) => Message::Open {
                        id,
                        lanes: lanes.clone(),
                    },
                    Ask::Start => Message::Start { id },
                    Ask::Name => Message::Name { id },
                    Ask::Drain => Message::Drain { id },
                };
                // What the peer would have to refuse ends no session: whoever asked is told.
                if let Err(o) = check(&message) {
                    let _ = sender.send(Err(ControlError::Setting {
                        key: o.field,
                        problem: o.problem,
                    }));
                    return Ok(());
                }
                self.waiting.insert(id, (ask, sender));
                wire.send(&message).await
            }
            Command::Say(message) => wire.send(&message).await,
            Command::Bye => {
                wire.send(&Message::Bye {}).await?;
                Err(ControlError::Bye {
                    peer: self.peer.clone(),
                })
            }
            Command::Close(code, text) => Err(ControlError::Ended {
                peer: self.peer.clone(),
                code,
                text,
            }),
        }
    }

    fn handle(&mut self, wire: &Wire, message: Message) -> Result<(), ControlError> {
        match message {
            Message::Opened { id, lanes } => self.answer(id, "opened", |peer, ask| match ask {
                Ask::Open(asked) => {
                    check_grants(peer, asked, &lanes).map(|()| Reply::Opened(lanes))
                }
                _ => Err(no_such(peer, id, "opened")),
            }),
            Message::Ready { id } => self.answer(id, "ready", |peer, ask| match ask {
                Ask::Start => Ok(Reply::Ready),
                _ => Err(no_such(peer, id, "ready")),
            }),
            Message::NameIs { id, name } => self.answer(id, "name_is", |peer, ask| match ask {
                Ask::Name => Ok(Reply::Name(name)),
                _ => Err(no_such(peer, id, "name_is")),
            }),
            Message::Drained { id, counters } => {
                self.answer(id, "drained", |peer, ask| match ask {
                    Ask::Drain => Ok(Reply::Drained(counters)),
                    _ => Err(no_such(peer, id, "drained")),
                })
            }
            Message::Refused { id, code, text } => {
                let Some((ask, sender)) = self.waiting.remove(&id) else {
                    return Err(no_such(&self.peer, id, "refused"));
                };
                // Whoever asked may have stopped waiting.
                let _ = sender.send(Err(ControlError::Refused {
                    peer: self.peer.clone(),
                    asked: ask.kind(),
                    code,
                    text: clip(&text),
                }));
                Ok(())
            }
            Message::Heartbeat { seq, counters } => {
                self.heartbeat
                    .number(seq)
                    .map_err(|e| out_of_order(&self.peer, e))?;
                // The next one says more than this one: a reader that is behind misses nothing.
                let _ = self.events.try_send(ClientEvent::Heartbeat(counters));
                Ok(())
            }
            Message::LaneLost { lane, epoch, cause } => self.tell(ClientEvent::LaneLost {
                lane,
                epoch,
                cause: clip(&cause),
            }),
            Message::LaneReset { lane, epoch } => self.tell(ClientEvent::LaneReset { lane, epoch }),
            Message::Bye {} => Err(ControlError::Bye {
                peer: self.peer.clone(),
            }),
            other @ (Message::Hello { .. }
            | Message::Answer { .. }
            | Message::Model { .. }
            | Message::Open { .. }
            | Message::Start { .. }
            | Message::Name { .. }
            | Message::Drain { .. }
            | Message::Error { .. }) => Err(unexpected(
                wire,
                &other,
                "an accelerator's frame of a session",
            )),
        }
    }

    /// Gives an answer to whoever waits for it.
    fn answer(
        &mut self,
        id: u64,
        kind: &'static str,
        reply: impl FnOnce(&Peer, &Ask) -> Result<Reply, ControlError>,
    ) -> Result<(), ControlError> {
        let Some((ask, sender)) = self.waiting.remove(&id) else {
            return Err(no_such(&self.peer, id, kind));
        };
        // Whoever asked may have stopped waiting.
        let _ = sender.send(Ok(reply(&self.peer, &ask)?));
        Ok(())
    }

    fn tell(&self, event: ClientEvent) -> Result<(), ControlError> {
        match self.events.try_send(event) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(ControlError::EventsUnread {
                peer: self.peer.clone(),
                unread: MAX_EVENTS,
            }),
            // Nobody listens, by choice.
            Err(mpsc::error::TrySendError::Closed(_)) | Ok(()) => Ok(()),
        }
    }
}

impl Ask {
    fn kind(&self) -> &'static str {
        match self {
            Ask::Open(_) => "open",
            Ask::Start => "start",
            Ask::Name => "name",
            Ask::Drain => "drain",
        }
    }
}

fn no_such(peer: &Peer, id: u64, kind: &'static str) -> ControlError {
    ControlError::Field {
        peer: peer.clone(),
        kind,
        field: "id",
        problem: format!("{id} is no such request of this session"),
    }
}

/// Grants must answer the requests one for one.
fn check_grants(
    peer: &Peer,
    asked: &[LaneRequest],
    granted: &[LaneGrant],
) -> Result<(), ControlError> {
    let same = asked.len() == granted.len()
        && asked
            .iter()
            .zip(granted)
            .all(|(a, g)| (a.lane, a.epoch, a.slots) == (g.lane, g.epoch, g.slots));
    if same {
        return Ok(());
    }
    Err(ControlError::Field {
        peer: peer.clone(),
        kind: "opened",
        field: "lanes",
        problem: "are not the lanes, epochs and slots that were asked for".to_owned(),
    })
}
