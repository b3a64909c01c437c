//! The control plane's sockets and tasks: bytes in and out of the core, and nothing that decides.
//!
//! * `io`: one control connection; reads, writes, sleeps until the core's next deadline.
//! * `client`: the frontend's session, and the handle by which other threads use it.
//! * `server`: accepts, bounds pending handshakes, admits one frontend.
//! * `session`: the accelerator's session; runs the slow calls of its handler beside it.
//! * `pending`: an answer that is still to come.

mod client;
mod io;
mod pending;
mod server;
mod session;

pub use client::{ClientEvents, ClientHandle, ClientParams, ClientSession};
pub use pending::Pending;
pub use server::{Server, ServerParams};
pub use session::{ServerHandle, ServerSession, SessionHandler};

#[cfg(all(test, not(qdl_loom)))]
pub(super) use server::greet;
#[cfg(all(test, not(qdl_loom)))]
pub(super) use session::Served;
