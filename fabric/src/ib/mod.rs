//! The InfiniBand and RoCE fabric: reliable-connected queue pairs of libibverbs, which the `verbs`
//! crate loads at run time.
//!
//! | role | here |
//! | --- | --- |
//! | device | [`IbDevice`]: one port of one NIC, opened on its NUMA node, and its events |
//! | configuration | [`IbKeys`]: keys of a NIC; [`IbCfgs`]: sizes within the device's limits |
//! | resources | [`IbResources`]: the protection domain and its memory registrations |
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
//! RC queue pairs alone do not fulfil the whole contract. This module adds:
//!
//! * **Windows.** The memory registration covers exactly the slots, so the NIC refuses a write
//!   outside all slots. The receiver detects a write beyond its slot by the length, after the write
//!   has landed. Each connection has its own remote key, which ends with the connection.
//! * **Lengths** come from the completion's `byte_len`, or from the descriptor in the cell beside
//!   the slot. A split write that fills its slot needs no descriptor. Bit 15 of the immediate marks
//!   a split write; slot numbers never reach it.
//! * **Receives.** The queue pair always has one posted receive per slot, one batch, and some for
//!   control messages: receives are posted again before their events are reported. A slot written
//!   in two parts has two receives; with any number of parts, a slot has four. If parts use up the
//!   receives, the sender's NIC retries without end; the echo detects a receiver that has stopped.
//! * **Parts** take one work request each and lie one behind another. A queue pair's writes arrive
//!   in order, so the lengths of earlier parts give the offset of the next.
//! * **Closing.** A queue pair does not notify its peer when it is destroyed, so the sending half
//!   sends a goodbye (an immediate of control kind 2) before it is dropped. Dropping both halves
//!   moves the queue pair to ERR first.
//! * **Sleeping.** Both completion queues share one completion channel. The receive queue is armed
//!   for solicited completions, the send queue only while that queue is full.

mod cfgs;
mod connection;
mod device;
mod keys;
mod nic;
mod resources;
mod rx;
mod shared;
mod tx;

pub use crate::wire::{IbEnd, IbRegion};
use cfgs::OWN_RECEIVES;
pub use cfgs::{IbCfgs, Traffic};
pub use connection::IbConnection;
pub use device::IbDevice;
pub use keys::{AdaptiveRouting, IbKeys};
pub use resources::{IbResources, check_memory, locked_memory_limit};

/// The immediate of the goodbye, a connection's last message: control kind 2.
const CLOSE: u32 = 1 << 31 | 2 << 28;
