//! Sockets and tasks of the control plane; all decisions are in the core.
//!
//! * `io`: one control connection; reads, writes, and sleeps until the core's next deadline.
//! * `client`: the frontend's session, and its handle for other threads.
//! * `server`: accepts peers, bounds pending handshakes, admits one frontend.
//! * `session`: the accelerator's session; runs slow calls of its handler on other threads.
//! * `pending`: an answer that has not come yet.

mod client;
mod io;
mod pending;
mod server;
mod session;

pub use client::{ClientEvents, ClientHandle, ClientSession};
pub use pending::Pending;
pub use server::Server;
pub use session::{ServerHandle, ServerSession, SessionHandler};
