//! The accelerator's side of a session, from the handshake to its end.

use std::{net::SocketAddr, sync::Arc};

use tokio::sync::mpsc;

use crate::{
    model::ModelSpec,
    stats::{BatchSizes, GpuRecord},
};

use super::{
    ControlError,
    handshake::{Claim, Known},
    heartbeat::{Health, HeartbeatCfgs},
    message::{Counters, ErrorCode, LaneGrant, LaneRequest, Message, Role, Scores, clip},
    serving::Serving,
    wire::Wire,
};

/// A request that is not granted: the frontend is told, and the session goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason.
    pub code: ErrorCode,
    /// Reason in words: what is asked for, what there is, which key to change.
    pub text: String,
}

/// What an accelerator does when its frontend asks. Calls come from the session's task and must not
/// wait, but for [`SessionHandler::open`] and [`SessionHandler::start`], which come one at a time on a thread
/// of their own.
pub trait SessionHandler: Send + Sync + 'static {
    /// Makes connections: one grant for each request, in the same order, or none at all. A lane that is
    /// open already comes with a higher epoch: it is to be rebuilt.
    ///
    /// # Errors
    /// The frontend is told, and nothing has changed.
    fn open(&self, lanes: &[LaneRequest]) -> Result<Vec<LaneGrant>, Refusal>;

    /// All data connections are up: get ready to serve, warm-up included.
    ///
    /// # Errors
    /// The frontend is told.
    fn start(&self) -> Result<(), Refusal>;

    /// The frontend has given up this connection.
    fn lane_lost(&self, lane: u16, epoch: u32, cause: &str);

    /// The frontend's end of this connection is torn down, and nothing there uses its slots.
    fn lane_reset(&self, lane: u16, epoch: u32);

    /// The totals once everything that has arrived is answered, `None` while it is not. Called again until
    /// it is.
    fn drain(&self) -> Option<Counters>;

    /// The session's batches by their size, and what each GPU did in it, for the answer to a drain.
    fn engine(&self) -> (BatchSizes, Vec<GpuRecord>) {
        Default::default()
    }

    /// This node's part of the SUT's name, as it is now.
    fn name(&self) -> String;

    /// Totals for the next heartbeat.
    fn counters(&self) -> Counters;

    /// A heartbeat of the frontend came.
    fn heartbeat(&self, counters: &Counters) {
        let _ = counters;
    }

    /// Scores for the next heartbeat, where this node keeps some.
    fn scores(&self) -> Option<Scores> {
        None
    }

    /// The scores that a heartbeat of the frontend carried.
    fn told(&self, scores: &Scores) {
        let _ = scores;
    }

    /// The frontend was heard again after it had fallen silent, or has fallen silent.
    fn health(&self, health: Health) {
        let _ = health;
    }

    /// The session is over: called exactly once, last of all, and before another frontend is let in. (A call
    /// of [`SessionHandler::open`] or [`SessionHandler::start`] that is under way then may still return; what
    /// it granted is void.)
    fn gone(&self, cause: &ControlError);
}

/// A frontend that has proved who it is, before [`ServerSession::run`].
#[derive(Debug)]
pub struct ServerSession {
    wire: Wire,
    address: SocketAddr,
    reached: SocketAddr,
    known: Known,
    heartbeat: HeartbeatCfgs,
    claim: Claim,
    outbox: mpsc::UnboundedReceiver<Out>,
    handle: ServerHandle,
}

/// What this node has to say by itself.
#[derive(Debug)]
pub(super) enum Out {
    Say(Message),
    Close(ErrorCode, String),
}

/// Speaks to the frontend from any thread. What is said after the session's end is lost.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    outbox: mpsc::UnboundedSender<Out>,
}

impl ServerHandle {
    /// This node has given up a connection.
    pub fn lane_lost(&self, lane: u16, epoch: u32, cause: &str) {
        self.say(Message::LaneLost {
            lane,
            epoch,
            cause: clip(cause),
        });
    }

    /// This node's end of a lost connection is torn down and no batch reads its slots.
    pub fn lane_reset(&self, lane: u16, epoch: u32) {
        self.say(Message::LaneReset { lane, epoch });
    }

    /// Ends the session and tells the frontend why.
    pub fn close(&self, code: ErrorCode, text: &str) {
        let _ = self.outbox.send(Out::Close(code, clip(text)));
    }

    fn say(&self, message: Message) {
        // The session's end is told through the handler; there is nobody to tell it to here.
        let _ = self.outbox.send(Out::Say(message));
    }
}

impl ServerSession {
    pub(super) fn new(
        wire: Wire,
        (address, reached): (SocketAddr, SocketAddr),
        known: Known,
        heartbeat: HeartbeatCfgs,
        claim: Claim,
    ) -> Self {
        let (sender, outbox) = mpsc::unbounded_channel();
        ServerSession {
            wire,
            address,
            reached,
            known,
            heartbeat,
            claim,
            outbox,
            handle: ServerHandle { outbox: sender },
        }
    }

    /// The frontend's node name.
    pub fn peer_node(&self) -> &str {
        &self.known.node
    }

    /// The address the frontend connects from.
    pub fn peer_address(&self) -> SocketAddr {
        self.address
    }

    /// The address of this node that the frontend reached.
    pub fn local_address(&self) -> SocketAddr {
        self.reached
    }

    /// The frontend's model; it is this node's too.
    pub fn peer_model(&self) -> &ModelSpec {
        &self.known.model
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
            heartbeat,
            claim,
            mut outbox,
            handle,
            ..
        } = self;
        // The session's own handle would keep the outbox open; others may live on.
        drop(handle);
        let mut end = End {
            handler: handler.clone(),
            cause: ControlError::Ended {
                peer: wire.peer(),
                code: ErrorCode::ShuttingDown,
                text: "the session was dropped".to_owned(),
            },
            _claim: claim,
        };
        let mut serving = Serving::new(wire.peer(), &heartbeat, handler);
        let cause = serving.run(&mut wire, &mut outbox).await;
        end.cause = cause.clone();
        wire.close(&cause, Role::Accelerator).await;
        cause
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
