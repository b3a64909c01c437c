//! The InfiniBand and RoCE fabric: queue pairs of libibverbs,
//! which is found at run time (the `verbs` crate).
//!
//! | role | here |
//! | --- | --- |
//! | device | [`IbDevice`]: one port of one NIC, opened near it, and its asynchronous events |
//! | configuration | [`IbCfgs`]: what a connection is made with, within the device's limits |
//! | resources | [`IbResources`]: the protection domain and the registered memory in it |
//! | connection | [`IbConnection`]: one queue pair, first without a peer, then two halves |
//!
//! ```text
//!   Tx: post .. post, flush                                   Rx: poll
//!   [WRITE_WITH_IMM | WRITE_WITH_IMM | ...] one doorbell ==>  slot i    <- payload
//!   one in `signal_every` completes here,                     CQ entry  <- immediate, byte_len
//!   and retires all before it                                 receives go back in bulk
//!
//!   a payload above `split_above`:
//!   [WRITE payload | WRITE_WITH_IMM of 16 bytes, inline]  ==> slot i    <- payload, in any order
//!                                                             cell i    <- length, use count
//!                                                             CQ entry  <- immediate
//! ```
//!
//! How the contract is kept here, beyond what RC queue pairs do by themselves:
//!
//! * **Windows.** Exactly the slots are registered, so a write that strays outside all of them is
//!   refused by the NIC; one that strays into a neighbour's slot is found out by its length when it
//!   has landed. The region's key is the connection's own and dies with it.
//! * **Lengths** are the completion's `byte_len`, or the descriptor's in the cell
//!   beside the slot. A split write that fills its slot needs no descriptor. Bit
//!   15 of the immediate, which no slot number reaches, says which it is.
//! * **Receives**: one for each slot, one batch more, and some for control messages, are posted at
//!   all times, because they go back before what consumed them is reported. Where a slot is written
//!   in parts there is one for each of two, or for four of any number: then the sender's NIC waits
//!   for a receive, for ever if need be, and the echo finds out whom it waits for in vain.
//! * **Parts** go whole, one work request each, and lie behind one another: a queue pair's writes
//!   arrive in order, so that the lengths so far say where each begins.
//! * **Closing.** Queue pairs do not tell each other when they go: the last message of a half that
//!   is dropped in good order says so (an immediate of control kind 2). Dropping both halves moves
//!   the queue pair to ERR before anything else.
//! * **Sleeping.** One completion channel for both queues. The receive queue is armed for solicited
//!   completions; the send queue only while a full one is waited for.

mod cfgs;
mod connection;
mod device;
mod error;
mod resources;
mod rx;
mod shared;
mod tx;

pub use crate::wire::{IbEnd, IbRegion};
pub use cfgs::{CONTROL_RECEIVES, IbCfgs, IbWishes, RECEIVE_BATCH, Traffic};
pub use connection::IbConnection;
pub use device::{IbDevice, IbDeviceCfgs};
pub use error::IbError;
pub use resources::{IbResources, check_memory, locked_memory_limit};

/// The immediate of the last message: control kind 2.
const CLOSE: u32 = 1 << 31 | 2 << 28;
