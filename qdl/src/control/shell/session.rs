//! The accelerator's side of a session, from the handshake to its end.

use std::{io, net::SocketAddr, sync::Arc};

use fabric::{Imm, clock::now_ns, wire::Stream};
use futures_util::future::BoxFuture;
use record::{BatchSizes, GpuRecord, NodeUse};
use tokio::sync::mpsc;

use super::{blocking::Blocking, io::Wire};
use crate::{
    control::{
        core::{
            Core, RolePart,
            accelerator::{Accelerator, Event, Refusal},
        },
        error::ControlError,
        message::{
            ConnectionGrant, ConnectionRequest, Counters, ErrorCode, MAX_REFUSAL, Message, Scores,
            clip_to,
        },
    },
    wire::Description,
};

/// Callbacks of an accelerator's session. The session's task makes the calls, which must not block.
/// Only [`SessionHandler::open`] and [`SessionHandler::describe`] may take time ([`Blocking`]).
pub trait SessionHandler: Send + Sync + 'static {
    /// Opens connections: one grant per request, in the same order, or none. A request with a
    /// higher epoch opens an existing connection again.
    ///
    /// # Errors
    /// The request is refused and has no effect.
    fn open(&self, connections: &[ConnectionRequest]) -> Result<Vec<ConnectionGrant>, Refusal>;

    /// The frontend has given up this connection.
    fn connection_lost(&self, connection: u16, epoch: u32, cause: &str);

    /// The frontend's end of this connection is destroyed and uses no slots.
    fn connection_reset(&self, connection: u16, epoch: u32);

    /// The frontend wants the sample of this slot and use count no more.
    fn cancel(&self, connection: u16, epoch: u32, imm: Imm) {
        let _ = (connection, epoch, imm);
    }

    /// Totals once every arrived sample is answered, `None` before. Called again until it returns
    /// totals.
    fn drain(&self) -> Option<Counters>;

    /// The session's batches by size and the record of each GPU, for the answer to a drain.
    fn engine(&self) -> (BatchSizes, Vec<GpuRecord>) {
        Default::default()
    }

    /// Work of this node's threads and engine since its start, for the answer to a drain.
    fn used(&self) -> NodeUse {
        NodeUse::default()
    }

    /// This node's side of the run, from byte `at` on: its total length, and a piece of at most
    /// 128 KiB. Empty by default.
    fn side(&self, at: u64) -> (u64, String) {
        let _ = at;
        (0, String::new())
    }

    /// This node's current part of the SUT's name.
    fn name(&self) -> String;

    /// This node's machine and configuration. One call at a time, on a separate thread.
    ///
    /// # Errors
    /// No description is available; the frontend gets the reason.
    fn describe(&self) -> Result<Description, Refusal> {
        let text = "this node has no description of itself";
        Err(Refusal::new(ErrorCode::Protocol, text))
    }

    /// Totals for the next heartbeat.
    fn counters(&self) -> Counters;

    /// Scores for the next heartbeat, if this node measures any.
    fn scores(&self) -> Option<Scores> {
        None
    }

    /// The session is over. Called exactly once, as the last call, before a next frontend is
    /// admitted. A concurrent call of [`SessionHandler::open`] may still return; its grants are
    /// void.
    fn gone(&self, cause: &ControlError);
}

/// Node name of the frontend being served; dropping it lets the next frontend in.
pub(super) type Claim = Arc<String>;

/// Command of a handle to the session; the second argument is the time in ns.
type Command = Box<dyn FnOnce(&mut Accelerator, u64) + Send>;

/// An authenticated and admitted frontend, before [`ServerSession::run`].
#[derive(Debug)]
pub struct ServerSession {
    pub(super) wire: Wire,
    pub(super) core: Accelerator,
    /// The frontend's node name.
    pub(crate) peer_node: String,
    /// The frontend's address.
    pub(crate) peer_address: SocketAddr,
    /// This node's address that the frontend reached.
    pub(crate) local_address: SocketAddr,
    pub(super) claim: Claim,
    pub(super) inbox: mpsc::UnboundedReceiver<Command>,
    pub(super) blocking: Blocking,
    /// Handle for messages from other threads.
    pub handle: ServerHandle,
}

/// Sends messages to the frontend from any thread. Messages after the session's end are dropped.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    pub(super) commands: mpsc::UnboundedSender<Command>,
}

impl ServerHandle {
    /// Tells the frontend that this node has given up a connection.
    pub fn connection_lost(&self, connection: u16, epoch: u32, cause: &str) {
        let cause = cause.to_owned();
        self.command(move |session, _| {
            session
                .link_mut()
                .connection_lost(connection, epoch, &cause)
        });
    }

    /// Sends the full reason of a refusal whose slot holds only a part of it.
    pub(crate) fn refused_sample(
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

    /// Tells the frontend that this node's end of a lost connection uses no slots any more.
    pub fn connection_reset(&self, connection: u16, epoch: u32) {
        self.command(move |session, _| session.link_mut().connection_reset(connection, epoch));
    }

    /// Ends the session with an error to the frontend.
    pub(crate) fn close(&self, code: ErrorCode, text: &str) {
        let text = text.to_owned();
        self.command(move |session, now| session.link_mut().close(code, &text, now));
    }

    pub(super) fn command(&self, command: impl FnOnce(&mut Accelerator, u64) + Send + 'static) {
        // An error means that the session is over, which the handler learns from `gone`.
        let _ = self.commands.send(Box::new(command));
    }
}

impl ServerSession {
    /// Moments at which the frontend wants tokens to leave this node.
    pub(crate) fn stream(&self) -> Stream {
        match &self.core.link().handshake.peer_own {
            Some(RolePart::Stream(stream)) => *stream,
            // The handshake requires the stream.
            _ => Stream::None,
        }
    }

    /// Serves the frontend until the session ends and returns the cause
    /// ([`is_clean`](ControlError::is_clean) for a bye). Dropping this future ends the session too.
    pub async fn run(self, handler: Arc<dyn SessionHandler>) -> ControlError {
        let ServerSession {
            mut wire,
            mut core,
            claim,
            mut inbox,
            blocking,
            // This handle lives as long as the session, so the inbox stays open.
            handle,
            ..
        } = self;
        let mut end = SessionEnd {
            handler: handler.clone(),
            cause: ControlError::Ended {
                peer: core.link().peer(),
                code: ErrorCode::ShuttingDown,
                text: "the session was dropped".to_owned(),
            },
            _claim: claim,
        };
        let mut opening: Option<BoxFuture<'static, io::Result<_>>> = None;
        loop {
            let event = tokio::select! { biased;
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
                    opening = Some(blocking.run(move || handler.open(&connections)));
                }
                Some(Event::Name(id)) => {
                    let name = handler.name();
                    core.answer(id, Ok(Message::NameIs { id, name }));
                }
                Some(Event::Describe(id)) => {
                    let (handler, handle) = (handler.clone(), handle.clone());
                    // The handler may query devices and drivers, which takes time.
                    tokio::spawn(blocking.run(move || {
                        let described = |description| Message::Described {
                            id,
                            description: Box::new(description),
                        };
                        let answer = handler.describe().map(described);
                        handle.command(move |session, _| session.answer(id, answer));
                    }));
                }
                Some(Event::Side(id, at)) => {
                    let (of, text) = handler.side(at);
                    core.answer(id, Ok(Message::SideIs { id, of, text }));
                }
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
                Some(Event::Cancel {
                    connection,
                    epoch,
                    imm,
                }) => handler.cancel(connection, epoch, imm),
                Some(Event::Gone(cause)) => {
                    end.cause = cause;
                    break;
                }
                Some(Event::Handshake(_)) => {}
                None => break,
            }
        }
        wire.close(core).await;
        end.cause.clone()
    }
}

/// Calls the handler's `gone` however the session ends, then releases the place.
struct SessionEnd {
    handler: Arc<dyn SessionHandler>,
    cause: ControlError,
    _claim: Claim,
}

impl Drop for SessionEnd {
    fn drop(&mut self) {
        self.handler.gone(&self.cause);
    }
}
