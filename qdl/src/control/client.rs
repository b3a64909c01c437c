//! The frontend's side of a session: connect, ask, listen.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    net::TcpStream,
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    model::ModelSpec,
    stats::{BatchSizes, GpuRecord},
};

use super::{
    ControlError, Timing,
    auth::Auth,
    error::Peer,
    handshake::{Local, join},
    heartbeat::Health,
    message::{Counters, ErrorCode, LaneGrant, LaneRequest, Message, Role, Scores, clip},
    pending::{Ended, Pending, Reply},
    server::check_params,
    talk::{Ask, Command, run},
    wire::Wire,
};

/// Events kept for a reader that is slow; heartbeats beyond are dropped, anything else ends the session.
pub(super) const MAX_EVENTS: usize = 4096;

/// Gives this node's totals for a heartbeat; called on the session's task.
pub type CountersFn = Arc<dyn Fn() -> Counters + Send + Sync>;

/// Gives this node's scores for a heartbeat, where it keeps some; called on the session's task.
pub type ScoresFn = Arc<dyn Fn() -> Option<Scores> + Send + Sync>;

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
    /// Scores for this node's heartbeats.
    pub scores: ScoresFn,
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
    /// The scores that a heartbeat carried.
    Scores(Scores),
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
    pub fn drain(&self) -> Pending<(Counters, BatchSizes, Vec<GpuRecord>)> {
        self.ask(Ask::Drain, "drained", |r| match r {
            Reply::Drained(counters, batches, gpus) => Some((counters, batches, gpus)),
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
            scores,
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
            (counters, scores),
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
