//! Devices whose far end is played on the spot: every immediate that is posted is answered, after a
//! time that stands for the way there and back, by a function of the caller's.
//!
//! [`verbs`](verbs) gives a library with as many devices as are asked for, `feed0`, `feed1` and so
//! on. There is no peer, no lock that two queue pairs share and no copy of a payload, so that what
//! is left is the cost of the software above, and one device does not slow another down. A queue
//! pair is connected to a number that [`far_end`] gave:
//!
//! ```text
//!   post_send   an entry of 128 bytes for each work request, as a provider writes one into its
//!               queue; each immediate goes into the ring of the receive queue, with its time
//!   poll_cq     what is due: asks the far end, which writes its answer where the caller put the
//!               memory, and completes a receive with it
//! ```
//!
//! Kept from libibverbs' contract: receives that are consumed, and waited for where there is none;
//! signaled sends that complete; a queue that is full (`ENOMEM`, the work request not taken); one
//! event for a queue that is armed. A post that finds the queue armed raises the event at once,
//! before the answer is due, and so does arming while something is under way: a sleeper then wakes
//! and looks on. Not kept: keys, bounds and failures, which the devices of
//! [`stub::verbs`](super::verbs) check.
//!
//! * `objects` - queues, queue pairs and far ends
//! * `calls` - the functions of the table
//! * `cost` - what a work request and a completion take of themselves

mod calls;
mod cost;
mod objects;

use std::sync::Arc;

use crate::safe::Verbs;

pub use cost::{Cost, cost};
pub use objects::Answered;

/// Most devices that there can be.
pub const MAX_DEVICES: usize = 64;

/// A library with [`MAX_DEVICES`] devices, `feed0`, `feed1` and so on.
#[must_use]
pub fn verbs() -> Arc<Verbs> {
    // SAFETY: the table's functions keep the part of libibverbs' contract that the safe layer
    // relies on; queues and queue pairs are locked each for itself.
    unsafe { Verbs::from_api(calls::api()) }
}

/// Makes a far end and gives the number of its queue pair, for one peer to connect to. `answer` is
/// given each immediate, as it was posted, `delay_ns` nanoseconds later at the earliest, on the
/// thread that polls; it returns what arrives in turn, if anything does, and has written it before.
#[must_use]
pub fn far_end(
    delay_ns: u64,
    answer: impl Fn(u32) -> Option<Answered> + Send + Sync + 'static,
) -> u32 {
    objects::register(objects::FarEnd {
        delay_ns,
        answer: Box::new(answer),
    })
}

#[cfg(test)]
mod tests;
