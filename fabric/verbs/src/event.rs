//! Asynchronous events: state changes of a device, a port or a queue pair.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use crate::device::Context;
use crate::error::{Error, last_errno};
use crate::raw;

/// An asynchronous event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The link of this port, from 1, is down. The device leaves its queue pairs as they are: to
    /// fail them now, move them to ERR.
    PortDown(u8),
    /// The device failed, with all its queue pairs and queues.
    DeviceFatal,
    /// The device moved a queue pair to ERR: its number, and the cause as libibverbs names it.
    QpFatal(u32, &'static str),
    /// The completion queue with this token overflowed or failed; its queue pairs are unusable.
    CqError(u64),
    /// Any other event, with its libibverbs number.
    Other(u32),
}

impl Context {
    /// Takes the next asynchronous event; `None` if none is pending. Never blocks: sleep on
    /// [`Context::async_fd`].
    pub fn next_async_event(&self) -> Result<Option<AsyncEvent>, Error> {
        let mut event = MaybeUninit::<raw::ibv_async_event>::zeroed();
        // SAFETY: the context is open, and `event` is writable.
        let result = unsafe { (self.api().get_async_event)(self.as_raw(), event.as_mut_ptr()) };
        if result != 0 {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                _ => Err(Error::verb_errno("ibv_get_async_event", || {
                    format!("reading the events of {}", self.name())
                })),
            };
        }
        // SAFETY: the successful call filled `event`.
        let mut event = unsafe { event.assume_init() };
        // SAFETY: the library returned `event`, and it is not yet acknowledged.
        let described = unsafe { describe(&event) };
        // SAFETY: this is the only acknowledgement, and nothing uses the event's object afterwards.
        unsafe { (self.api().ack_async_event)(&raw mut event) };
        Ok(Some(described))
    }

    /// A descriptor that is readable while an asynchronous event is pending, until the context is
    /// dropped.
    pub fn async_fd(&self) -> RawFd {
        // SAFETY: the context is open, and its descriptor is constant.
        unsafe { (*self.as_raw()).async_fd }
    }
}

/// Converts an event of libibverbs.
///
/// # Safety
/// `event` must come from the library and be unacknowledged, which keeps the object in it from
/// being destroyed.
unsafe fn describe(event: &raw::ibv_async_event) -> AsyncEvent {
    let qp_fatal = |cause| {
        // SAFETY: for queue pair events, the active member is a live queue pair.
        let qp_num = unsafe { (*event.element.qp).qp_num };
        AsyncEvent::QpFatal(qp_num, cause)
    };
    match event.event_type {
        raw::IBV_EVENT_PORT_ERR => {
            // SAFETY: for port events, the active member of the union is the port number.
            let port = unsafe { event.element.port_num };
            AsyncEvent::PortDown(u8::try_from(port).unwrap_or(0))
        }
        raw::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
        raw::IBV_EVENT_QP_FATAL => qp_fatal("IBV_EVENT_QP_FATAL"),
        raw::IBV_EVENT_QP_REQ_ERR => qp_fatal("IBV_EVENT_QP_REQ_ERR"),
        raw::IBV_EVENT_QP_ACCESS_ERR => qp_fatal("IBV_EVENT_QP_ACCESS_ERR"),
        raw::IBV_EVENT_CQ_ERR => {
            // SAFETY: for this event, the member is a live completion queue; its token is a number.
            AsyncEvent::CqError(unsafe { (*event.element.cq).cq_context } as u64)
        }
        other => AsyncEvent::Other(other),
    }
}
