//! The control plane: two nodes authenticate, agree on a model and on connections, monitor each
//! other and end the session. `docs/protocol.md` is normative.
//!
//! The control plane uses one TCP connection per pair of nodes, which the frontend opens. Frames
//! are JSON ([`frame`], `message`, `limits`). The order is hello, Noise handshake (`noise`,
//! `auth`), model, then requests and answers beside a heartbeat, all encrypted. `core` is the
//! protocol for both roles, without I/O.
//! `shell` is the code around it: tokio, sockets and tasks. [`ClientSession`] is the frontend's
//! side; [`Server`] and [`ServerSession`] are the accelerator's side. Unauthenticated peers wait in
//! a `lobby`.
//!
//! The control plane is not on a sample's path. Every wait has a deadline, every frame is checked
//! before use, and an unauthenticated peer learns nothing but the hello.

pub(crate) mod frame;
pub(crate) mod limits;
pub(crate) mod message;

mod auth;
mod core;
mod error;
#[cfg(feature = "testkit")]
pub(crate) mod fuzz;
pub(crate) mod lobby;
mod noise;
mod quiet;
mod shell;

#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub use self::core::{
    LocalNode, RolePart, Timing, accelerator::Refusal, frontend::ClientEvent,
    heartbeat::HeartbeatCfgs,
};
pub use auth::{Auth, Token};
pub use error::ControlError;
pub(crate) use error::{NotYet, check_unique_names};
pub use message::{ConnectionGrant, ConnectionRequest, Counters};
pub(crate) use message::{ErrorCode, RailScore, Scores};
pub(crate) use shell::block_on;
pub use shell::{
    Blocking, ClientEvents, Connected, Connector, ControlStream, Reception, Server, ServerHandle,
    SessionHandler, Visitor,
};
pub(crate) use shell::{ClientHandle, ClientSession, Pending, ServerSession, Sockets};
