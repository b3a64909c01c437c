//! The control plane: how two nodes find out who the other is, agree on a model and on connections, watch
//! each other and part. `docs/protocol.md` is normative.
//!
//! It runs over one TCP connection for each pair of nodes, which the frontend opens. Frames are JSON
//! ([`frame`], [`message`], [`limits`]); the order is hello, proof ([`auth`]), model, and from then on requests
//! and their answers in both directions beside a [`heartbeat`]. [`Server`] and [`ServerSession`] are the
//! accelerator's side, [`ClientSession`] is the frontend's.
//!
//! Nothing here is on the way of a sample. Every wait has a deadline, every frame is checked before it is
//! believed, and what a peer has not proved it is not told.

pub mod auth;
pub mod frame;
pub mod heartbeat;
pub mod limits;
pub mod message;

mod client;
mod error;
mod handshake;
mod pending;
mod server;
mod serving;
mod session;
mod talk;
mod wire;

#[cfg(all(test, not(qdl_loom)))]
mod tests;

use std::time::Duration;

pub use auth::{Auth, AuthError, Token};
pub use client::{
    ClientEvent, ClientEvents, ClientHandle, ClientParams, ClientSession, CountersFn, ScoresFn,
};
pub use error::{ControlError, Peer, check_unique_names};
pub use heartbeat::{Health, HeartbeatCfgs};
pub use message::{
    Counters, ErrorCode, GrantTransport, Key, LaneGrant, LaneRequest, RailScore, RequestTransport,
    Role, Scores,
};
pub use pending::Pending;
pub use server::{Server, ServerParams};
pub use session::{Refusal, ServerHandle, ServerSession, SessionHandler};

/// Deadlines of a session, beside those that its callers give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// For a connection to be made.
    pub connect: Duration,
    /// For the whole handshake, and for the system to take any one frame.
    pub handshake: Duration,
    /// The heartbeat's periods.
    pub heartbeat: HeartbeatCfgs,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            connect: Duration::from_secs(5),
            handshake: Duration::from_secs(5),
            heartbeat: HeartbeatCfgs::default(),
        }
    }
}
