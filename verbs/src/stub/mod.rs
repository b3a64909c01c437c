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
//! until there is one); flushing; arming, solicited or not;
//! asynchronous events.
//!
//! * `fabric` - the state of all devices, under one lock, and what a work request does to it
//! * `objects` - the objects as libibverbs lays them out, created and destroyed
//! * `table`, `queues` - the functions of [`raw::Api`](crate::raw::Api)

mod fabric;
mod objects;
mod queues;
mod table;

use std::sync::Arc;

use crate::raw;
use crate::safe::{Context, Qp, State, Verbs};

pub use fabric::{Counts, Live};

/// How many devices there are.
pub const DEVICES: usize = 4;

/// The most bytes that ride inline here.
pub const MAX_INLINE: u32 = 512;

/// A library with the stub's devices.
#[must_use]
pub fn verbs() -> Arc<Verbs> {
    // SAFETY: the table's functions keep libibverbs' contract; a lock is held wherever state is
    // shared.
    unsafe { Verbs::from_api(table::api()) }
}

/// What has been counted on a device since it was opened. Zero for a device that is not the stub's.
#[must_use]
pub fn counts(context: &Context) -> Counts {
    let Some(stub) = stub_of(context) else {
        return Counts::default();
    };
    // SAFETY: `stub_of` checked whose context it is, and `context` keeps it open; the lock is held.
    fabric::with(|_| unsafe { (*stub).counts })
}

/// Queue pairs and registrations that exist now, on all devices together.
#[must_use]
pub fn live() -> Live {
    fabric::with(|fabric| fabric.live())
}

/// Pulls the device's cable, or plugs it in: raises the event, and lets every write to or from it
/// fail while it is out.
pub fn set_port(context: &Context, up: bool) {
    let Some(stub) = stub_of(context) else { return };
    fabric::with(|fabric| {
        // SAFETY: as in `counts`; the lock is held.
        unsafe {
            (*stub).port_up = up;
            let event_type = if up {
                raw::IBV_EVENT_PORT_ACTIVE
            } else {
                raw::IBV_EVENT_PORT_ERR
            };
            let element = raw::ibv_async_element { port_num: 1 };
            fabric.raise(
                stub,
                raw::ibv_async_event {
                    element,
                    event_type,
                },
            );
        }
    });
}

/// Reports that the device has failed, as a NIC does when its firmware stops.
pub fn fail_device(context: &Context) {
    let Some(stub) = stub_of(context) else { return };
    fabric::with(|fabric| {
        let element = raw::ibv_async_element { port_num: 0 };
        // SAFETY: as in `counts`; the lock is held.
        unsafe {
            fabric.raise(
                stub,
                raw::ibv_async_event {
                    element,
                    event_type: raw::IBV_EVENT_DEVICE_FATAL,
                },
            )
        };
    });
}

/// Lets this queue pair's writes succeed without touching memory or the peer: what remains is the
/// cost of the software above.
pub fn discard<S: State>(qp: &Qp<S>) {
    if stub_of(qp.pd().context()).is_none() {
        return;
    }
    // SAFETY: a queue pair of the stub's, kept alive by `qp`; the lock is held.
    fabric::with(|_| unsafe { (*qp.as_raw().cast::<objects::StubQp>()).discard = true });
}

/// Lets this queue pair's writes leave and never complete, as those to a peer that is gone do until
/// retries are used up.
pub fn swallow<S: State>(qp: &Qp<S>) {
    if stub_of(qp.pd().context()).is_none() {
        return;
    }
    // SAFETY: as in `discard`.
    fabric::with(|_| unsafe { (*qp.as_raw().cast::<objects::StubQp>()).swallow = true });
}

/// The stub's view of a context, `None` for another provider's.
fn stub_of(context: &Context) -> Option<*mut objects::StubContext> {
    let raw = context.as_raw();
    // SAFETY: the context is open; its device pointer does not change.
    let device = unsafe { (*raw).device };
    objects::is_ours(device).then_some(raw.cast())
}
