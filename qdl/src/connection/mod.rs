//! What both ends of a connection have in common while it is up. [`crate::dispatch`] is the
//! frontend's side and [`crate::serve`] the accelerator's; they hold what differs.
//!
//! * [`token`]: a lock whose losers leave their work to its owner.
//! * [`tracker`]: which slot belongs to which sample, at the frontend; `free_slots`: which are
//!   free.
//! * `send`: the sending half, behind its token: post, flush, control messages, what it counts, how
//!   it takes its leave.
//! * `receive`: the receiving half, as the NIC thread polls it; `polling`: in which order.
//! * `costs`: what a write to a socket and a wake-up cost here, measured at the start.
//! * `doorbell`: whether a thread that issues has the time to post, and who rings.
//! * [`nic_thread`]: the threads that poll the connections of NICs, entries of `nics`, one or
//!   several each. Both ends run the same loop over different work.
//! * [`echo`]: when a quiet connection is asked for a sign of life, and when it is given up. The
//!   clock is passed in.

pub mod echo;
pub mod nic_thread;
pub mod token;
pub mod tracker;

mod free_slots;
mod polling;
mod receive;
mod send;

pub use echo::{Echo, EchoAction, EchoCfgs};
pub use nic_thread::{
    CrewPlan, MakeWork, NicThreadCfgs, NicThreadHandle, NicWork, Placed, Spin, Turn, Wait,
    join_all, spawn, spawn_crew,
};
pub(crate) use nic_thread::{ENDING, arm_all};
pub(crate) use polling::PollOrder;
pub(crate) use receive::{Polled, Receiving, burst};
pub(crate) use send::{Next, Outgoing, Posted, SendCounts, SendHalf};
