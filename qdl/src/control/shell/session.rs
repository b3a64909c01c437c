//! The accelerator's side of a session, from the handshake to its end.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use record::{BatchSizes, GpuRecord, NodeFacts, NodeUse};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    clock::now_ns,
    wire::{Description, Stream},
};

use super::io::Wire;
use crate::control::{
    core::{
        Core, Own,
        accelerator::{Accelerator, Event, Refusal},
    },
    error::ControlError,
    message::{
        ConnectionGrant, ConnectionRequest, Counters, ErrorCode, MAX_REFUSAL, Message, Scores,
        clip_to,
    },
};

/// What an accelerator does when its frontend asks. Calls come from the session's task and must not
/// wait, but for [`SessionHandler::open`], which comes once at a time on a thread of its own.
pub trait SessionHandler: Send + Sync + 'static {
    /// Makes connections: one grant for each request, in the same order, or none at all. A
    /// connection that is open already comes with a higher epoch: it is to be rebuilt.
    ///
    /// # Errors
    /// The frontend is told, and nothing has changed.
    fn open(&self, connections: &[ConnectionRequest]) -> Result<Vec<ConnectionGrant>, Refusal>;

    /// The frontend has given up this connection.
    fn connection_lost(&self, connection: u16, epoch: u32, cause: &str);

    /// The frontend's end of this connection is torn down, and nothing there uses its slots.
    fn connection_reset(&self, connection: u16, epoch: u32);

    /// The totals once everything that has arrived is answered, `None` while it is not. Called
    /// again until it is.
    fn drain(&self) -> Option<Counters>;

    /// The session's batches by their size, and what each GPU did in it, for the answer to a drain.
    fn engine(&self) -> (BatchSizes, Vec<GpuRecord>) {
        Default::default()
    }

    /// What this node's threads and engine were used for since it started, for the same answer.
    fn used(&self) -> NodeUse {
        NodeUse::default()
    }

    /// This node's side of the run, from a byte on: how many bytes it is in all, and a piece of at
    /// most [`MAX_SIDE_PART`](crate::control::limits::MAX_SIDE_PART). Nothing unless it keeps one.
    fn side(&self, at: u64) -> (u64, String) {
        let _ = at;
        (0, String::new())
    }

    /// This node's part of the SUT's name, as it is now.
    fn name(&self) -> String;

    /// This node's machine and configuration. It comes once at a time, on a thread of its own.
    ///
    /// # Errors
    /// The frontend is told why there is none.
    fn describe(&self) -> Result<Description, Refusal> {
        Err(Refusal {
            code: ErrorCode::Protocol,
            text: "this node has no description of itself".to_owned(),
        })
    }

    /// Totals for the next heartbeat.
    fn counters(&self) -> Counters;

    /// Scores for the next heartbeat, where this node keeps some.
    fn scores(&self) -> Option<Scores> {
        None
    }

    /// The session is over: called exactly once, last of all, and before another frontend is let
    /// in. (A call of [`SessionHandler::open`] that is under way then may still return; what it
    /// granted is void.)
    fn gone(&self, cause: &ControlError);
}

/// Which frontend is served; at most one is.
#[derive(Clone, Debug, Default)]
pub(in crate::control) struct Served(Arc<Mutex<Option<String>>>);

/// The right to be the one; given back when dropped.
#[derive(Debug)]
pub(in crate::control) struct Claim(Served);

impl Served {
    /// Takes the place for `node`, or says who has it.
    pub fn claim(&self, node: &str) -> Result<Claim, String> {
        let mut served = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*served {
            Some(other) => Err(other.clone()),
            None => {
                *served = Some(node.to_owned());
                Ok(Claim(self.clone()))
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// What a handle has the session do, with the time.
type Command = Box<dyn FnOnce(&mut Accelerator, u64) + Send>;

/// A frontend that has proved who it is, before [`ServerSession::run`].
#[derive(Debug)]
pub struct ServerSession {
    wire: Wire,
    core: Accelerator,
    node: String,
    address: SocketAddr,
    reached: SocketAddr,
    claim: Claim,
    inbox: mpsc::UnboundedReceiver<Command>,
    handle: ServerHandle,
}

/// Speaks to the frontend from any thread. What is said after the session's end is lost.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    commands: mpsc::UnboundedSender<Command>,
}

impl ServerHandle {
    /// This node has given up a connection.
    pub fn connection_lost(&self, connection: u16, epoch: u32, cause: &str) {
        let cause = cause.to_owned();
        self.command(move |session, _| {
            session
                .link_mut()
                .connection_lost(connection, epoch, &cause)
        });
    }

    /// An engine refused a sample, and its slot has no room for all of the reason.
    pub fn refused_sample(
        &self,
        (connection, epoch, slot, use_count): (u16, u32, u16, u16),
        why: &str,
    ) {
        let message = Message::RefusedSample {
            connection,
            epoch,
            slot,
            use_count,
            text: clip_to(why, MAX_REFUSAL),
        };
        self.command(move |session, _| session.link_mut().say(message));
    }

    /// This node's end of a lost connection is torn down and no batch reads its slots.
    pub fn connection_reset(&self, connection: u16, epoch: u32) {
        self.command(move |session, _| session.link_mut().connection_reset(connection, epoch));
    }

    /// Ends the session and tells the frontend why.
    pub fn close(&self, code: ErrorCode, text: &str) {
        let text = text.to_owned();
        self.command(move |session, now| session.link_mut().close(code, &text, now));
    }

    fn command(&self, command: impl FnOnce(&mut Accelerator, u64) + Send + 'static) {
        // The handler learns of the session's end; there is nothing to report here.
        let _ = self.commands.send(Box::new(command));
    }
}

impl ServerSession {
    pub(super) fn new(
        (wire, core): (Wire, Accelerator),
        (address, reached): (SocketAddr, SocketAddr),
        node: String,
        claim: Claim,
    ) -> Self {
        let (commands, inbox) = mpsc::unbounded_channel();
        ServerSession {
            wire,
            core,
            node,
            address,
            reached,
            claim,
            inbox,
            handle: ServerHandle { commands },
        }
    }

    /// The frontend's node name.
    pub fn peer_node(&self) -> &str {
        &self.node
    }

    /// The address the frontend connects from.
    pub fn peer_address(&self) -> SocketAddr {
        self.address
    }

    /// When the frontend wants tokens to leave this node.
    pub fn stream(&self) -> Stream {
        match self.core.link().peer_own() {
            Some(Own::Stream(stream)) => *stream,
            // A session does not begin without it.
            _ => Stream::None,
        }
    }

    /// What the frontend says of itself and its machine.
    pub fn facts(&self) -> &NodeFacts {
        self.core.link().peer_facts()
    }

    /// The address of this node that the frontend reached.
    pub fn local_address(&self) -> SocketAddr {
        self.reached
    }

    /// For speaking to the frontend from other threads.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Serves the frontend until the session ends, and says why it did
    /// ([`is_clean`](ControlError::is_clean) for a bye). Dropping this future ends the session too.
    pub async fn run(self, handler: Arc<dyn SessionHandler>) -> ControlError {
        let ServerSession {
            mut wire,
            mut core,
            claim,
            mut inbox,
            // One handle at least lives as long as the session: the inbox stays open.
            handle,
            ..
        } = self;
        let mut end = End {
            handler: handler.clone(),
            cause: ControlError::Ended {
                peer: core.link().peer(),
                code: ErrorCode::ShuttingDown,
                text: "the session was dropped".to_owned(),
            },
            _claim: claim,
        };
        let mut opening: Option<JoinHandle<_>> = None;
        loop {
            let event = tokio::select! {
                event = wire.next(&mut core) => event,
                Some(command) = inbox.recv() => {
                    command(&mut core, now_ns());
                    continue;
                }
                done = async { opening.as_mut().expect("checked").await }, if opening.is_some() => {
                    opening = None;
                    match done {
                        Ok(answer) => core.opened(answer),
                        Err(e) => {
                            let text = format!("the accelerator failed while it opened: {e}");
                            core.link_mut().close(ErrorCode::ShuttingDown, &text, now_ns());
                        }
                    }
                    continue;
                }
            };
            match event {
                Some(Event::Open(connections)) => {
                    let handler = handler.clone();
                    opening = Some(tokio::task::spawn_blocking(move || {
                        handler.open(&connections)
                    }));
                }
                Some(Event::Name(id)) => core.named(id, handler.name()),
                Some(Event::Describe) => {
                    let (handler, handle) = (handler.clone(), handle.clone());
                    // It may ask devices and drivers, which takes a while.
                    tokio::task::spawn_blocking(move || {
                        let answer = handler.describe();
                        handle.command(move |session, _| session.described(answer));
                    });
                }
                Some(Event::Side(id, at)) => core.side_is(id, handler.side(at)),
                Some(Event::Drain) => {
                    if let Some(counters) = handler.drain() {
                        let (batches, gpus) = handler.engine();
                        core.drained(counters, &batches, gpus, handler.used());
                    }
                }
                Some(Event::Beat) => core.beat(handler.counters(), handler.scores()),
                Some(Event::ConnectionLost {
                    connection,
                    epoch,
                    cause,
                }) => {
                    handler.connection_lost(connection, epoch, &cause);
                }
                Some(Event::ConnectionReset { connection, epoch }) => {
                    handler.connection_reset(connection, epoch)
                }
                Some(Event::Gone(cause)) => {
                    end.cause = cause;
                    break;
                }
                Some(Event::Proved | Event::Admit(_) | Event::Connected(_)) => {}
                None => break,
            }
        }
        wire.close(core).await;
        end.cause.clone()
    }
}

/// Tells the handler, whatever way the session ends, and gives the place free after that.
struct End {
    handler: Arc<dyn SessionHandler>,
    cause: ControlError,
    _claim: Claim,
}

impl Drop for End {
    fn drop(&mut self) {
        self.handler.gone(&self.cause);
    }
}
