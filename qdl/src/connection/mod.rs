//! A connection that is up: the code that both ends share. [`crate::dispatch`] is the frontend's
//! end and [`crate::serve`] the accelerator's end.
//!
//! * [`token`]: a lock whose losers leave their work to the owner.
//! * [`tracker`]: the sample of each slot, at the frontend; `free_slots`: the free slots.
//! * `send`: the sending half behind its token: posts, flushes, control messages, counts and
//!   goodbye.
//! * `receive`: the receiving half, polled by the NIC thread; `polling`: the order of polling.
//! * [`nic_thread`]: the threads that poll connections; a NIC (an entry of `nics`) has one or
//!   several. Both ends run the same loop over different work.
//! * `share`: the body of a NIC thread, generic over the end, and the threads of an end.
//! * `echo`: liveness of a quiet connection; the caller passes the clock's readings.

mod echo;
pub mod nic_thread;
pub mod token;
pub mod tracker;

mod free_slots;
mod polling;
mod receive;
mod send;
pub(crate) mod share;

pub use echo::EchoCfgs;
pub(crate) use echo::{Echo, EchoAction};
pub use nic_thread::{CrewPlan, NicThread, NicThreadCfgs, Spin, Wait, join_all};
pub(crate) use nic_thread::{
    ENDING, MakeWork, NicThreadHandle, NicWork, Placed, Turn, arm_all, make_crew, start,
};
pub(crate) use polling::PollOrder;
pub(crate) use receive::{ArrivedWrite, ReceiveHalf, writes_at_once};
pub(crate) use send::{SendCounts, SendHalf, WriteSource, not_posted};
