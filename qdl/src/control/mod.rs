//! The control plane: how two nodes find out who the other is, agree on a model and on connections,
//! watch each other and part. `docs/protocol.md` is normative.
//!
//! It runs over one TCP connection for each pair of nodes, which the frontend opens. Frames are
//! JSON ([`frame`], [`message`], [`limits`]); the order is hello, proof ([`auth`]), model, and from
//! then on requests and their answers beside a heartbeat. The protocol itself is in `core`, for
//! both roles and without I/O; `shell` is what is around it: tokio, sockets and tasks.
//! [`ClientSession`] is the frontend's side, [`Server`] and [`ServerSession`] are the
//! accelerator's. Whoever has connected and not proved who it is waits in a `lobby`.
//!
//! Nothing here is on the way of a sample. Every wait has a deadline, every frame is checked before
//! it is believed, and what a peer has not proved it does not learn.

pub mod auth;
pub mod frame;
pub mod limits;
pub mod message;
pub mod quiet;

mod core;
mod error;
pub(crate) mod lobby;
mod shell;

#[cfg(all(test, not(qdl_loom)))]
mod tests;

pub use self::core::{
    Timing, accelerator::Refusal, frontend::ClientEvent, heartbeat::HeartbeatCfgs,
};
pub use auth::{Auth, AuthError, Token};
pub use error::{ControlError, Peer, check_unique_names};
pub use message::{
    ConnectionGrant, ConnectionRequest, Counters, ErrorCode, GrantTransport, Key, RailScore,
    RequestTransport, Role, Scores,
};
pub use shell::{
    ClientEvents, ClientHandle, ClientParams, ClientSession, Pending, Server, ServerHandle,
    ServerParams, ServerSession, SessionHandler,
};
