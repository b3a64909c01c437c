//! The frontend's side of a session: connection, requests and events.

use std::{net::SocketAddr, sync::Arc};

use fabric::{Imm, clock::now_ns};
use record::{BatchSizes, EngineInfo, GpuRecord, NodeFacts, NodeUse};
use tokio::sync::{mpsc, oneshot};

use super::{
    io::Wire,
    pending::{Ended, Pending, ReplySender},
    stream::{Connector, Sockets},
};
use crate::{
    control::{
        core::{
            Core, LocalNode, RolePart,
            frontend::{ClientEvent, Event, Frontend},
        },
        error::ControlError,
        message::{ConnectionGrant, ConnectionRequest, Counters, ErrorCode, Hex, Message, Role},
    },
    wire::Description,
};

/// Events kept for a slow reader. Beyond this number heartbeats are dropped, and any other event
/// ends the session.
const MAX_EVENTS: usize = 4096;

type Session = Frontend<ReplySender>;

/// Command of a handle to the session; the second argument is the time in ns.
type Command = Box<dyn FnOnce(&mut Session, u64) + Send>;

/// A session with one accelerator. A task on the runtime of [`ClientSession::connect`] drives it.
#[derive(Debug)]
pub struct ClientSession {
    /// The accelerator's node name.
    pub peer_node: String,
    /// The accelerator's address.
    pub peer_address: SocketAddr,
    /// Engine of the accelerator.
    pub engine: EngineInfo,
    /// Facts about the accelerator's node.
    pub facts: NodeFacts,
    /// Handle for requests.
    pub handle: ClientHandle,
    /// Events of the session.
    pub events: ClientEvents,
}

/// The events of one session, in order.
#[derive(Debug)]
pub struct ClientEvents {
    events: mpsc::Receiver<ClientEvent>,
    ended: Arc<Ended>,
    /// The session's task drops the sender when its socket is closed.
    closed: oneshot::Receiver<()>,
}

impl ClientEvents {
    /// Waits for the next event. [`ClientEvent::Gone`] is the last; later calls repeat it.
    pub(crate) async fn next(&mut self) -> ClientEvent {
        let event = self.events.recv().await;
        event.unwrap_or_else(|| ClientEvent::Gone(self.ended.cause()))
    }

    /// Waits until the session's socket is closed in good order, shortly after the session's end.
    /// If the caller drops the runtime earlier, a reset may discard the last frame.
    pub(crate) async fn closed(&mut self) {
        let _ = (&mut self.closed).await;
    }
}

/// Sends requests from any thread. Dropping the last handle ends the session with a bye.
#[derive(Clone, Debug)]
pub struct ClientHandle {
    commands: mpsc::UnboundedSender<Command>,
    ended: Arc<Ended>,
}

/// A function that takes a part of one kind of answer.
macro_rules! part {
    ($answer:pat => $part:expr) => {
        |answer| match answer {
            $answer => Some($part),
            _ => None,
        }
    };
}

impl ClientHandle {
    /// Requests connections; all are granted, in this order, or none.
    pub(crate) fn open(
        &self,
        connections: Vec<ConnectionRequest>,
    ) -> Pending<Vec<ConnectionGrant>> {
        let take = part!(Message::Opened { connections, .. } => connections);
        self.ask("opened", take, |id| Message::Open { id, connections })
    }

    /// Announces that all data connections are up; answered when the accelerator accepts samples.
    pub(crate) fn start(&self) -> Pending<()> {
        let take = part!(Message::Ready { .. } => ());
        self.ask("ready", take, |id| Message::Start { id })
    }

    /// Requests the accelerator's part of the SUT's name; each call costs one round trip.
    pub fn name(&self) -> Pending<String> {
        let take = part!(Message::NameIs { name, .. } => name);
        self.ask("name_is", take, |id| Message::Name { id })
    }

    /// Requests that the accelerator answer all arrived samples.
    pub fn drain(&self) -> Pending<(Counters, BatchSizes, Vec<GpuRecord>, NodeUse)> {
        let take = part!(
            Message::Drained { counters, batches, gpus, used, .. } =>
                (counters, batches, gpus, used)
        );
        self.ask("drained", take, |id| Message::Drain { id })
    }

    /// Requests the accelerator's machine and configuration. A second request before the answer
    /// ends the session.
    pub(crate) fn describe(&self) -> Pending<Description> {
        let take = part!(Message::Described { description, .. } => *description);
        self.ask("described", take, |id| Message::Describe { id })
    }

    /// Requests the accelerator's side of the run, from byte `at` on: its total length in bytes,
    /// and the piece.
    pub(crate) fn side(&self, at: u64) -> Pending<(u64, String)> {
        let take = part!(Message::SideIs { of, text, .. } => (of, text));
        self.ask("side_is", take, move |id| Message::Side { id, at })
    }

    /// Tells the accelerator that this node has given up a connection.
    pub fn connection_lost(&self, connection: u16, epoch: u32, cause: &str) {
        let cause = cause.to_owned();
        self.command(move |session, _| {
            session
                .link_mut()
                .connection_lost(connection, epoch, &cause)
        });
    }

    /// Tells the accelerator that the sample of this slot and use count is wanted no more.
    pub fn cancel(&self, connection: u16, epoch: u32, imm: Imm) {
        let message = Message::Cancel {
            connection,
            epoch,
            slot: imm.slot(),
            use_count: imm.use_count(),
        };
        self.command(move |session, _| session.link_mut().say(message));
    }

    /// Tells the accelerator that this node's end of a lost connection uses no slots any more.
    pub fn connection_reset(&self, connection: u16, epoch: u32) {
        self.command(move |session, _| session.link_mut().connection_reset(connection, epoch));
    }

    /// Ends the session in good order, so that the accelerator can serve the next frontend.
    /// [`ClientEvent::Gone`] follows.
    pub(crate) fn bye(&self) {
        self.command(|session, now| session.link_mut().bye(now));
    }

    /// Ends the session with an error to the accelerator.
    pub(crate) fn close(&self, code: ErrorCode, text: &str) {
        let text = text.to_owned();
        self.command(move |session, now| session.link_mut().close(code, &text, now));
    }

    /// Cause of the session's end, once it has ended.
    pub(crate) fn ended(&self) -> Option<ControlError> {
        self.ended.if_over()
    }

    fn ask<T>(
        &self,
        answer: &'static str,
        take: fn(Message) -> Option<T>,
        request: impl FnOnce(u64) -> Message + Send + 'static,
    ) -> Pending<T> {
        let (sender, reply) = oneshot::channel();
        self.command(move |session, _| session.ask(answer, request, sender));
        Pending {
            answer: reply,
            take,
            waiting_for: answer,
            ended: self.ended.clone(),
        }
    }

    pub(super) fn command(&self, command: impl FnOnce(&mut Session, u64) + Send + 'static) {
        // After the session's end the command is dropped, and the closed answer channel reports the
        // end.
        let _ = self.commands.send(Box::new(command));
    }
}

impl ClientSession {
    /// Connects to `address`, the accelerator's `control.listen` (`host:port`), authenticates both
    /// ways and compares models. Must be called on a tokio runtime that runs as long as the
    /// session.
    ///
    /// # Errors
    /// [`ControlError`] names the address, the missing frame or the refusal, and the remedy.
    pub(crate) async fn connect(
        address: String,
        local: LocalNode,
    ) -> Result<ClientSession, ControlError> {
        ClientSession::connect_by(&Sockets, address, local).await
    }

    /// As [`ClientSession::connect`], over a stream of `connector`.
    ///
    /// # Errors
    /// As [`ClientSession::connect`].
    pub(crate) async fn connect_by(
        connector: &dyn Connector,
        address: String,
        local: LocalNode,
    ) -> Result<ClientSession, ControlError> {
        local.check()?;
        let (stream, peer_address) = connector.connect(&address, local.timing.step).await?;
        local.auth.check(peer_address.ip())?;
        let nonce = Hex::random().map_err(|e| ControlError::no_random(&e))?;
        let mut wire = Wire::new(stream);
        let mut core = Session::new(Arc::new(local), address, nonce, now_ns());
        let peer_node = loop {
            match wire.next(&mut core).await {
                Some(Event::Connected(node)) => break node,
                Some(Event::Session(ClientEvent::Gone(cause))) => {
                    wire.close(core).await;
                    return Err(cause);
                }
                // Impossible: answers come in a session, and `None` comes after the cause.
                Some(Event::Answer(..) | Event::Session(_)) | None => {}
            }
        };
        let engine = match &core.link().handshake.peer_own {
            Some(RolePart::Engine(engine)) => engine.clone(),
            // The handshake requires the engine.
            _ => EngineInfo::default(),
        };
        let facts = core.link().handshake.peer_facts.clone();
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
                closed,
            },
        })
    }
}

/// Runs the session until its end.
async fn run(
    mut wire: Wire,
    mut core: Session,
    mut inbox: mpsc::UnboundedReceiver<Command>,
    events: mpsc::Sender<ClientEvent>,
    ended: Arc<Ended>,
) {
    let mut asked = true;
    loop {
        let event = tokio::select! { biased;
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
                // A slow reader may miss a heartbeat, because the next heartbeat supersedes it.
                let news = matches!(event, ClientEvent::Heartbeat(_) | ClientEvent::Scores(_));
                if let Err(mpsc::error::TrySendError::Full(_)) = events.try_send(event)
                    && !news
                {
                    let text = format!("{MAX_EVENTS} events of its session were left unread");
                    let peer = core.link().peer();
                    let cause = ControlError::at_fault(peer, Role::Frontend, text);
                    core.link_mut().fail(cause, now_ns());
                }
            }
            Some(Event::Connected(_)) => {}
            None => break,
        }
    }
    // Drop the channels after setting the cause: a reader of a closed channel finds the cause.
    drop((inbox, events));
    wire.close(core).await;
}
