//! Asynchronous events: what happens to a device, a port or a queue pair by itself.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use super::context::Context;
use crate::error::{Error, last_errno};
use crate::raw;

/// An asynchronous event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The port carries traffic again.
    PortActive {
        /// The port, from 1.
        port: u8,
    },
    /// The port's link is gone. Its queue pairs are not moved to ERR by this: who wants them to
    /// fail now must do that.
    PortDown {
        /// The port, from 1.
        port: u8,
    },
    /// The port's address changed (LID, GID or partition key): connections may have to be made
    /// anew.
    AddressChange {
        /// The port, from 1.
        port: u8,
    },
    /// The device failed; everything on it is lost.
    DeviceFatal,
    /// A queue pair moved to ERR by itself.
    QpFatal {
        /// Its number.
        qp_num: u32,
        /// Why, by libibverbs' name.
        cause: &'static str,
    },
    /// A completion queue overflowed or failed; the queue pairs on it are lost.
    CqError {
        /// The queue's token.
        token: u64,
    },
    /// Another, by libibverbs' number.
    Other(u32),
}

impl Context {
    /// Takes the next asynchronous event, `None` when none has come. Never waits: wait on
    /// [`Context::async_fd`].
    ///
    /// # Errors
    ///
    /// The verb's.
    pub fn next_async_event(&self) -> Result<Option<AsyncEvent>, Error> {
        let mut event = MaybeUninit::<raw::ibv_async_event>::zeroed();
        // SAFETY: the context is open and the event is writable.
        let result = unsafe { (self.api().get_async_event)(self.as_raw(), event.as_mut_ptr()) };
        if result != 0 {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                _ => Err(Error::verb_errno("ibv_get_async_event", || {
                    format!("reading the events of {}", self.name())
                })),
            };
        }
        // SAFETY: the call filled it in.
        let mut event = unsafe { event.assume_init() };
        // SAFETY: just got from the library, and not acknowledged yet.
        let described = unsafe { describe(&event) };
        // SAFETY: acknowledged once; the objects in it are not touched afterwards.
        unsafe { (self.api().ack_async_event)(&raw mut event) };
        Ok(Some(described))
    }

    /// Readable when an asynchronous event has come.
    #[must_use]
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context's descriptor is open until the context is closed, which `self`'s
        // borrow precludes.
        unsafe { BorrowedFd::borrow_raw((*self.as_raw()).async_fd) }
    }
}

/// An event in this layer's words.
///
/// # Safety
///
/// `event` must come from the library and not be acknowledged: that keeps the object in it from
/// being destroyed.
unsafe fn describe(event: &raw::ibv_async_event) -> AsyncEvent {
    // SAFETY: for these types the element is a port number, of which a byte counts.
    let port = || u8::try_from(unsafe { event.element.port_num }).unwrap_or(0);
    let qp_fatal = |cause| {
        // SAFETY: for these types the element is a live queue pair.
        let qp_num = unsafe { (*event.element.qp).qp_num };
        AsyncEvent::QpFatal { qp_num, cause }
    };
    match event.event_type {
        raw::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive { port: port() },
        raw::IBV_EVENT_PORT_ERR => AsyncEvent::PortDown { port: port() },
        raw::IBV_EVENT_LID_CHANGE | raw::IBV_EVENT_GID_CHANGE | raw::IBV_EVENT_PKEY_CHANGE => {
            AsyncEvent::AddressChange { port: port() }
        }
        raw::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
        raw::IBV_EVENT_QP_FATAL => qp_fatal("IBV_EVENT_QP_FATAL"),
        raw::IBV_EVENT_QP_REQ_ERR => qp_fatal("IBV_EVENT_QP_REQ_ERR"),
        raw::IBV_EVENT_QP_ACCESS_ERR => qp_fatal("IBV_EVENT_QP_ACCESS_ERR"),
        raw::IBV_EVENT_CQ_ERR => {
            // SAFETY: for this type the element is a live completion queue; its token is a number.
            let token = unsafe { (*event.element.cq).cq_context } as u64;
            AsyncEvent::CqError { token }
        }
        other => AsyncEvent::Other(other),
    }
}
