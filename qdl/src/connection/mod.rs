//! What both ends of a connection have in common while it is up; [`crate::dispatch`] and
//! [`crate::serve`] are the two faces of it, and hold what differs.
//!
//! * [`token`]: a lock whose losers leave their work to its owner.
//! * [`tracker`]: which slot belongs to which sample, at the frontend.
//! * `send`: the sending half, behind its token: post, flush, control messages, what it counts, how
//!   it takes its leave.
//! * `receive`: the receiving half, as the NIC's thread polls it.
//! * `doorbell`: when a system call may wait for the next write.

mod doorbell;
mod receive;
mod send;
pub mod token;
pub mod tracker;

pub(crate) use receive::{BUDGET, Receiving};
pub(crate) use send::{Next, Outgoing, Posted, SendCounts, SendHalf};
