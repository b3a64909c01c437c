//! A provider inside the process: libibverbs' contract, kept by memcpy.
//!
//! [`verbs`] gives a [`Verbs`] with four devices, `stub0` to `stub3`, each with one port of a RoCE
//! kind. Queue pairs reach each other by number, whatever device they are on, and everything that
//! posting sets off has happened when the post returns. What can be tested with it: the software
//! above (trackers that wrap, partial posts, retirement, wake-ups, failures), and its cost per work
//! request. What cannot: time, real ordering, real loss.
//!
//! Kept from the real contract: states and what they allow; queue depths, with `ENOMEM` and the
//! first work request not taken; send queue places that come free only when a later signaled
//! completion is polled; keys, ranges and access rights; receives that are consumed by immediates,
//! and `RNR_RETRY_EXC_ERR` at once when there is none (or, with retries that do not end, `ENOMEM`
//! until there is one); flushing; arming, solicited or not; asynchronous events.
//!
//! * `fabric` - the state of all devices, under one lock, and what a work request does to it
//! * `table` - the functions of [`raw::Api`](crate::raw::Api)

mod fabric;
mod table;

use std::sync::Arc;

use crate::raw;
use crate::safe::{Context, Qp, State, Verbs};

pub use fabric::Live;

/// A library with the stub's devices.
#[must_use]
pub fn verbs() -> Arc<Verbs> {
    // SAFETY: the table's functions keep libibverbs' contract; a lock is held wherever state is
    // shared.
    unsafe { Verbs::from_api(table::api()) }
}

/// Queue pairs and registrations that exist now, on all devices together.
#[must_use]
pub fn live() -> Live {
    fabric::with(|fabric| fabric.live())
}

/// Pulls the cable of a device of the stub's, or plugs it in: raises the event, and lets every
/// write to or from it fail while it is out.
pub fn set_port(context: &Context, up: bool) {
    let event = if up {
        raw::IBV_EVENT_PORT_ACTIVE
    } else {
        raw::IBV_EVENT_PORT_ERR
    };
    fabric::with(|fabric| {
        let number = number_of(context);
        fabric.contexts[number].up = up;
        fabric.raise(number, event, raw::ibv_async_element { port_num: 1 });
    });
}

/// Reports that a device of the stub's has failed, as a NIC does when its firmware stops.
pub fn fail_device(context: &Context) {
    fabric::with(|fabric| {
        let element = raw::ibv_async_element { port_num: 0 };
        fabric.raise(number_of(context), raw::IBV_EVENT_DEVICE_FATAL, element);
    });
}

/// Lets the writes of a queue pair of the stub's leave and never complete, as those to a peer that
/// is gone do until retries are used up.
pub fn swallow<S: State>(qp: &Qp<S>) {
    fabric::with(|fabric| fabric.qps[qp.qp_num()].swallow = true);
}

fn number_of(context: &Context) -> u32 {
    // SAFETY: the context is open; its number does not change.
    unsafe { table::number_of(context.as_raw()) }
}
