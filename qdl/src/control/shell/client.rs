//! The frontend's side of a session: connect, ask, listen.

use std::{net::SocketAddr, sync::Arc};

use record::{BatchSizes, EngineInfo, GpuRecord, NodeFacts, NodeUse};
use tokio::{
    net::TcpStream,
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    clock::now_ns,
    model::ModelSpec,
    wire::{Description, Stream},
};

use super::{
    io::Wire,
    pending::{Ended, Pending, ReplySender},
};
use crate::control::{
    auth::Auth,
    core::{
        Core, Local, Own, Timing,
        frontend::{ClientEvent, Event, Frontend},
    },
    error::{ControlError, Peer},
    message::{ConnectionGrant, ConnectionRequest, Counters, ErrorCode, Hex, Message},
};

/// Events kept for a reader that is slow; heartbeats beyond are dropped, anything else ends the
/// session.
const MAX_EVENTS: usize = 4096;

type Session = Frontend<ReplySender>;

/// What a handle has the session do, with the time.
type Command = Box<dyn FnOnce(&mut Session, u64) + Send>;

/// What a frontend brings to a session.
#[derive(Clone, Debug)]
pub struct ClientParams {
    /// The accelerator's `control.listen`: `host:port`.
    pub address: String,
    /// This node's name.
    pub node: String,
    /// How both sides prove who they are.
    pub auth: Auth,
    /// The model of this run.
    pub model: ModelSpec,
    /// When tokens are to leave the accelerator.
    pub stream: Stream,
    /// What this node says of itself.
    pub facts: NodeFacts,
    /// Deadlines and heartbeat.
    pub timing: Timing,
}

/// A session with one accelerator. A task on the runtime it was made on keeps it alive.
#[derive(Debug)]
pub struct ClientSession {
    /// The accelerator's node name.
    pub peer_node: String,
    /// The accelerator's address.
    pub peer_address: SocketAddr,
    /// What runs the model there.
    pub engine: EngineInfo,
    /// What the accelerator says of itself and its machine.
    pub facts: NodeFacts,
    /// For asking.
    pub handle: ClientHandle,
    /// What happens.
    pub events: ClientEvents,
}

/// The events of one session, in order.
#[derive(Debug)]
pub struct ClientEvents {
    events: mpsc::Receiver<ClientEvent>,
    ended: Arc<Ended>,
    over: bool,
    /// Dropped by the session's task when its socket is closed.
    closed: oneshot::Receiver<()>,
}

impl ClientEvents {
    /// Waits for the next event; `None` after [`ClientEvent::Gone`].
    pub async fn next(&mut self) -> Option<ClientEvent> {
        match self.events.recv().await {
            Some(event) => Some(event),
            None => (!std::mem::replace(&mut self.over, true))
                .then(|| ClientEvent::Gone(self.ended.cause())),
        }
    }

    /// Waits until the session's socket is closed in good order, which may be a moment after its
    /// end: one that is dropped before may be reset, and the peer never read the last word.
    pub async fn closed(&mut self) {
        let _ = (&mut self.closed).await;
    }
}

/// Asks the accelerator from any thread. When the last one is dropped the session says bye and
/// ends.
#[derive(Clone, Debug)]
pub struct ClientHandle {
    commands: mpsc::UnboundedSender<Command>,
    ended: Arc<Ended>,
}

impl ClientHandle {
    /// Asks for connections; all of them are granted, in this order, or none.
    pub fn open(&self, connections: Vec<ConnectionRequest>) -> Pending<Vec<ConnectionGrant>> {
        let take = |r| match r {
            Message::Opened { connections, .. } => Some(connections),
            _ => None,
        };
        self.ask("opened", take, |session, to| session.open(connections, to))
    }

    /// Says that all data connections are up; answered when the accelerator is ready to serve.
    pub fn start(&self) -> Pending<()> {
        let take = |r| matches!(r, Message::Ready { .. }).then_some(());
        self.ask("ready", take, Session::start)
    }

    /// Asks the accelerator for its part of the SUT's name: one round trip for each call.
    pub fn name(&self) -> Pending<String> {
        let take = |r| match r {
            Message::NameIs { name, .. } => Some(name),
            _ => None,
        };
        self.ask("name_is", take, Session::name)
    }

    /// Asks the accelerator to answer all that has arrived.
    pub fn drain(&self) -> Pending<(Counters, BatchSizes, Vec<GpuRecord>, NodeUse)> {
        let take = |r| match r {
            Message::Drained {
                counters,
                batches,
                gpus,
                used,
                ..
            } => Some((counters, batches, gpus, used)),
            _ => None,
        };
        self.ask("drained", take, Session::drain)
    }

    /// Asks the accelerator to describe its machine and configuration. One such request at a time:
    /// a second one that comes before the answer ends the session.
    pub fn describe(&self) -> Pending<Description> {
        let take = |r| match r {
            Message::Described { description, .. } => Some(*description),
            _ => None,
        };
        self.ask("described", take, Session::describe)
    }

    /// Asks for a piece of the accelerator's side of the run, from a byte of it on: how many bytes
    /// it is in all, and the piece.
    pub fn side(&self, at: u64) -> Pending<(u64, String)> {
        let take = |r| match r {
            Message::SideIs { of, text, .. } => Some((of, text)),
            _ => None,
        };
        self.ask("side_is", take, move |session, to| session.side(at, to))
    }

    /// This node has given up a connection.
    pub fn connection_lost(&self, connection: u16, epoch: u32, cause: &str) {
        let cause = cause.to_owned();
        self.command(move |session, _| {
            session
                .link_mut()
                .connection_lost(connection, epoch, &cause)
        });
    }

    /// This node's end of a lost connection is torn down and nothing here uses its slots.
    pub fn connection_reset(&self, connection: u16, epoch: u32) {
        self.command(move |session, _| session.link_mut().connection_reset(connection, epoch));
    }

    /// Ends the session; the accelerator serves the next frontend. [`ClientEvent::Gone`] follows.
    pub fn bye(&self) {
        self.command(|session, now| session.link_mut().bye(now));
    }

    /// Ends the session and tells the accelerator what was wrong.
    pub fn close(&self, code: ErrorCode, text: &str) {
        let text = text.to_owned();
        self.command(move |session, now| session.link_mut().close(code, &text, now));
    }

    /// Why the session is over, if it is.
    pub fn ended(&self) -> Option<ControlError> {
        self.ended.if_over()
    }

    fn ask<T>(
        &self,
        waiting_for: &'static str,
        take: fn(Message) -> Option<T>,
        request: impl FnOnce(&mut Session, ReplySender) + Send + 'static,
    ) -> Pending<T> {
        let (sender, answer) = oneshot::channel();
        self.command(move |session, _| request(session, sender));
        Pending::new(answer, take, waiting_for, self.ended.clone())
    }

    fn command(&self, command: impl FnOnce(&mut Session, u64) + Send + 'static) {
        // After the end nothing takes it, and the caller learns of the end from its answer's
        // channel.
        let _ = self.commands.send(Box::new(command));
    }
}

impl ClientSession {
    /// Connects, authenticates both ways and compares models. Must be called on a tokio runtime,
    /// which has to go on running for as long as the session does.
    ///
    /// # Errors
    /// [`ControlError`] names the address, what was waited for or refused, and what to do.
    pub async fn connect(params: ClientParams) -> Result<ClientSession, ControlError> {
        let (address, timing) = (params.address, params.timing);
        let own = Own::Stream(params.stream);
        let (node, facts) = (params.node, params.facts);
        let local = Local::new(node, params.auth, params.model, own, facts, &timing)?;
        let failed = |e| ControlError::Connect {
            peer: Peer::at(&address),
            source: Arc::new(e),
        };
        let stream = match timeout(timing.connect, TcpStream::connect(&*address)).await {
            Ok(stream) => stream.map_err(failed)?,
            Err(_) => {
                return Err(ControlError::Timeout {
                    peer: Peer::at(&address),
                    waiting_for: "connection",
                    after: timing.connect,
                });
            }
        };
        let peer_address = stream.peer_addr().map_err(failed)?;
        local.auth.check(peer_address.ip())?;
        let nonce = Hex::random().map_err(|e| ControlError::Random(Arc::new(e)))?;
        let mut wire = Wire::new(stream, &address)?;
        let mut core = Session::new(Arc::new(local), address, nonce, now_ns());
        let peer_node = loop {
            match wire.next(&mut core).await {
                Some(Event::Connected(node)) => break node,
                Some(Event::Session(ClientEvent::Gone(cause))) => {
                    wire.close(core).await;
                    return Err(cause);
                }
                // Neither comes before the session begins, and the cause before the end.
                Some(Event::Answer(..) | Event::Session(_)) | None => {}
            }
        };
        let engine = match core.link().peer_own() {
            Some(Own::Engine(engine)) => engine.clone(),
            // A session does not begin without it.
            _ => EngineInfo::default(),
        };
        let facts = core.link().peer_facts().clone();
        let ended = Arc::new(Ended::new(core.link().peer()));
        let (commands, inbox) = mpsc::unbounded_channel();
        let (sender, events) = mpsc::channel(MAX_EVENTS);
        let (closing, closed) = oneshot::channel();
        let session = run(wire, core, inbox, sender, ended.clone());
        tokio::spawn(async move {
            session.await;
            drop(closing);
        });
        Ok(ClientSession {
            peer_node,
            peer_address,
            engine,
            facts,
            handle: ClientHandle {
                commands,
                ended: ended.clone(),
            },
            events: ClientEvents {
                events,
                ended,
                over: false,
                closed,
            },
        })
    }
}

/// The session's task.
async fn run(
    mut wire: Wire,
    mut core: Session,
    mut inbox: mpsc::UnboundedReceiver<Command>,
    events: mpsc::Sender<ClientEvent>,
    ended: Arc<Ended>,
) {
    let mut asked = true;
    loop {
        let event = tokio::select! {
            event = wire.next(&mut core) => event,
            command = inbox.recv(), if asked => {
                match command {
                    Some(command) => command(&mut core, now_ns()),
                    None => {
                        asked = false;
                        core.link_mut().bye(now_ns());
                    }
                }
                continue;
            }
        };
        match event {
            // The caller may have stopped waiting.
            Some(Event::Answer(sender, answer)) => drop(sender.send(answer)),
            Some(Event::Session(ClientEvent::Gone(cause))) => {
                ended.set(cause);
                break;
            }
            Some(Event::Session(event)) => {
                // The next heartbeat says more than this one: a reader that is behind misses
                // nothing.
                let news = matches!(event, ClientEvent::Heartbeat(_) | ClientEvent::Scores(_));
                if let Err(mpsc::error::TrySendError::Full(_)) = events.try_send(event)
                    && !news
                {
                    let peer = core.link().peer();
                    let unread = MAX_EVENTS;
                    let cause = ControlError::EventsUnread { peer, unread };
                    core.link_mut().fail(cause, now_ns());
                }
            }
            Some(Event::Connected(_)) => {}
            None => break,
        }
    }
    // First the cause, then the channels: who finds one closed finds the cause.
    drop((inbox, events));
    wire.close(core).await;
}
