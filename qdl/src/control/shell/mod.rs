//! Streams and tasks of the control plane; all decisions are in the core.
//!
//! * `stream`: the byte stream under a session, and its opener: sockets, or a simulation.
//! * `io`: one control connection; reads, writes, and sleeps until the core's next deadline.
//! * `client`: the frontend's session, and its handle for other threads.
//! * `server`: accepts peers, bounds pending handshakes, admits one frontend.
//! * `session`: the accelerator's session; runs slow calls of its handler on other threads.
//! * `pending`: an answer that has not come yet.
//! * `lies`: frames that only a faulty peer sends.
//! * `blocking`: the thread of calls that may block, and threads that wait for tasks.

mod blocking;
mod client;
mod io;
#[cfg(feature = "testkit")]
mod lies;
mod pending;
mod server;
mod session;
mod stream;

pub use blocking::Blocking;
pub(crate) use blocking::block_on;
pub use client::{ClientEvents, ClientHandle, ClientSession};
#[cfg(all(test, not(feature = "loom")))]
pub(super) use io::Framing;
pub use pending::Pending;
pub use server::{Reception, Server, Visitor};
pub use session::{ServerHandle, ServerSession, SessionHandler};
pub use stream::{Connected, Connector, ControlStream, Sockets};
