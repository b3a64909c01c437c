//! The protocol as a state machine without I/O, for both roles.
//!
//! A core opens no socket, starts no thread and reads no clock; the shell around it
//! (`control/shell`) does. All order, limits, deadlines and errors of the control plane are in the
//! core. The shell, or a test in its place, repeats these steps:
//!
//! 1. [`Core::handle`] for each received frame; [`Link::handle_eof`] and similar for socket errors;
//! 2. [`Core::handle_timeout`] with the time;
//! 3. [`Link::poll_transmit`] for each frame to send; [`Link::note_flushed`] once all are sent;
//! 4. [`Core::poll_event`] until it returns none; requests and answers are plain methods;
//! 5. sleep until the socket is ready, or until [`Core::poll_timeout`].
//!
//! Step 3 precedes step 4: the begin of a session, its bye and its end by this node are events only
//! once their frames are flushed. A caller whose events queue further frames returns to step 1.
//!
//! Times are nanoseconds of one monotonic clock. The caller supplies random bytes.

pub(super) mod accelerator;
pub(super) mod frontend;
mod handshake;
pub(super) mod heartbeat;
pub(super) mod link;

use super::{error::ControlError, message::Message};

pub use handshake::{LocalNode, RolePart, Timing};
pub(super) use link::{HandshakeStep, Link};

/// Interface of both roles to the shell.
pub(super) trait Core {
    /// Events for the owner.
    type Event;

    /// The state that both roles share.
    fn link(&self) -> &Link;

    /// The shared state, mutable: to handle frames and to end the session.
    fn link_mut(&mut self) -> &mut Link;

    /// Handles a frame of the session.
    ///
    /// # Errors
    /// The cause that ends the session.
    fn handle_session(&mut self, message: Message, now: u64) -> Result<(), ControlError>;

    /// Handles a frame of the peer.
    fn handle(&mut self, message: Message, now: u64) {
        if let Some(message) = self.link_mut().receive(message, now)
            && let Err(e) = self.handle_session(message, now)
        {
            self.link_mut().fail(e, now);
        }
    }

    /// Checks the time limits. The caller reads the peer's bytes first: this process may have been
    /// too slow to read them.
    fn handle_timeout(&mut self, now: u64);

    /// Latest time for [`Core::handle_timeout`]; `None` once the session is over.
    fn poll_timeout(&self) -> Option<u64> {
        self.link().poll_timeout()
    }

    /// The next event.
    fn poll_event(&mut self) -> Option<Self::Event>;
}
