//! The protocol without I/O, for both roles: frames and time in, frames and events out.
//!
//! A core opens no socket, starts no thread and reads no clock; the shell around it
//! (`control/shell`) does. Order, limits, deadlines and errors of the control plane live here and
//! nowhere else. The shell, or a test in its place, does this in turn:
//!
//! 1. [`Core::handle`] for each frame that came, [`Link::closed`] and its like for a socket that
//!    failed;
//! 2. [`Core::handle_timeout`] with the time;
//! 3. [`Core::poll_event`] until there is none; requests and answers are plain methods;
//! 4. [`Link::poll_transmit`] for each frame to send, [`Link::flushed`] once the system has taken
//!    all;
//! 5. sleep until there is something to read, or until [`Core::poll_timeout`].
//!
//! Times are nanoseconds of one monotonic clock. Random bytes are handed in.

pub mod accelerator;
pub mod frontend;
mod handshake;
pub mod heartbeat;
mod link;

#[cfg(all(test, not(qdl_loom)))]
mod tests;

use super::message::Message;

pub use handshake::Timing;
pub(super) use handshake::{Local, Own};
pub(super) use link::Link;

/// What the shell needs of either role.
pub(super) trait Core {
    /// What happens.
    type Event;

    /// What both roles have in common.
    fn link(&self) -> &Link;

    /// The same, for frames and ends.
    fn link_mut(&mut self) -> &mut Link;

    /// A frame of the peer came.
    fn handle(&mut self, message: Message, now: u64);

    /// Time has passed. To be called when what the peer has sent is read: this process may have
    /// been the one that slept.
    fn handle_timeout(&mut self, now: u64);

    /// When to call [`Core::handle_timeout`] at the latest; `None` once the session is over.
    fn poll_timeout(&self) -> Option<u64>;

    /// The next thing that has happened.
    fn poll_event(&mut self) -> Option<Self::Event>;
}
