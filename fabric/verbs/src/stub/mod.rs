//! An in-process provider: fulfils libibverbs' contract with memcpy, for tests.
//!
//! [`verbs`] returns a [`Verbs`] with four devices, `stub0` to `stub3`, each with one RoCE port.
//! Queue pairs address each other by number, across devices. A post has taken full effect when it
//! returns. The stub tests the software above it (wrapping counters, partial posts, retirement,
//! wake-ups, failures) and measures its cost per work request. The stub does not model time,
//! reordering or loss.
//!
//! Modelled parts of the contract: states and their permissions; queue depths, with `ENOMEM` and
//! the first refused work request; send queue entries that are freed only by polling a later
//! signaled completion; keys, ranges and access rights; receives consumed by immediates, and
//! `RNR_RETRY_EXC_ERR` at once if there is none (with endless retries, `ENOMEM` until there is
//! one); flushing; arming, solicited or not; asynchronous events.
//!
//! * `fabric` - the state of all devices, under one lock, and the effects of a work request
//! * `table` - the functions of [`raw::Api`](crate::raw::Api)

mod fabric;
mod table;

use std::sync::Arc;

use crate::raw;
use crate::{Context, Qp, Verbs};

pub use fabric::Live;

/// Returns a library with the stub's devices.
pub fn verbs() -> Arc<Verbs> {
    // SAFETY: the table's functions fulfil libibverbs' contract; a lock guards all shared state.
    unsafe { Verbs::from_api(table::api()) }
}

/// Counts live queue pairs and registrations, over all devices.
pub fn live() -> Live {
    fabric::with(|fabric| Live {
        queue_pairs: fabric.qps.count(),
        regions: fabric.regions.count(),
    })
}

/// Pulls or plugs the cable of a stub device: raises the event. While the port is down, every write
/// to or from the device fails.
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

/// Raises the event of a failed device, as a NIC does when its firmware stops.
pub fn fail_device(context: &Context) {
    fabric::with(|fabric| {
        let element = raw::ibv_async_element { port_num: 0 };
        fabric.raise(number_of(context), raw::IBV_EVENT_DEVICE_FATAL, element);
    });
}

/// Makes a stub queue pair take writes that never complete, like writes to a lost peer before the
/// retries run out.
pub fn swallow<S>(qp: &Qp<S>) {
    fabric::with(|fabric| fabric.qps[qp.qp_num()].swallow = true);
}

fn number_of(context: &Context) -> u32 {
    // SAFETY: the context is open, and its number is constant.
    unsafe { table::number_of(context.as_raw()) }
}
