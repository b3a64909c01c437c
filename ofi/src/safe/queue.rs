//! The completion queue of an endpoint: what has come to pass, what failed, and sleeping.

use std::ffi::{c_char, c_void};
use std::os::fd::RawFd;
use std::ptr;

use super::endpoint::Endpoint;
use super::library::text;
use crate::error::OpError;
use crate::raw;

/// Completions that are read at a time.
const READ: usize = 32;

/// What is said of a queue that had no room for what completed.
const FULL: &str = "the completion queue is full, and completions are lost";

/// What has come to pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A write has gone, and its memory is free.
    Sent {
        /// Which.
        send: usize,
    },
    /// A write of the peer has landed.
    Arrived {
        /// What it brought.
        data: u64,
        /// Its length, where the provider says: a promise of none.
        len: usize,
    },
}

/// [`Outcome`], and the receive that it used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// What it is.
    pub outcome: Outcome,
    /// The receive that has to be posted again.
    pub receive: Option<usize>,
}

/// An operation that failed, or the whole endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {text} ({errno}){detail}")]
pub struct Failed {
    /// The write, or the call.
    pub what: &'static str,
    /// libfabric's error number.
    pub errno: i32,
    /// libfabric's text for it.
    pub text: String,
    /// The provider's own words, in brackets, if it has any.
    pub detail: String,
}

impl Endpoint {
    fn index(&self, context: *mut c_void) -> Option<usize> {
        let base = self.contexts.as_ptr() as usize;
        let at = (context as usize).checked_sub(base)? / size_of::<raw::fi_context2>();
        (at < self.contexts.len()).then_some(at)
    }

    /// Posts a receive for a write with data, numbered from 0.
    ///
    /// # Errors
    ///
    /// [`OpError`].
    pub fn receive(&self, receive: usize) -> Result<(), OpError> {
        let endpoint = self.objects.endpoint;
        let refused = |errno| OpError {
            call: "fi_recv",
            errno,
        };
        if self.sends + receive >= self.contexts.len() {
            return Err(refused(libc::EINVAL));
        }
        let context = self.context(self.sends + receive);
        let (none, anybody) = (ptr::null_mut(), raw::FI_ADDR_UNSPEC);
        // SAFETY: the endpoint is open; a receive of nothing has no memory but its context, which
        // lives until the endpoint is closed.
        let code: isize = unsafe {
            raw::call!(
                (*endpoint).msg,
                recv(endpoint, none, 0, none, anybody, context)
            )
        };
        match code {
            0 => Ok(()),
            code => Err(refused(i32::try_from(-code).unwrap_or(libc::EIO))),
        }
    }

    /// Lets the provider work, and hands what has completed to `sink`. Returns how much.
    ///
    /// # Errors
    ///
    /// [`Failed`]: an operation, or the queue itself. What completed before it was handed out.
    pub fn poll(&self, sink: &mut dyn FnMut(Completion)) -> Result<usize, Failed> {
        let mut entries = [raw::fi_cq_data_entry {
            op_context: ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: ptr::null_mut(),
            data: 0,
        }; READ];
        let queue = self.objects.queue;
        // SAFETY: the queue is open, and as many entries of its format are written as there is
        // room for.
        let code: isize =
            unsafe { raw::call!((*queue).ops, read(queue, entries.as_mut_ptr().cast(), READ)) };
        if code == -(libc::EAGAIN as isize) {
            return Ok(0);
        }
        if code < 0 {
            return Err(self.failure(i32::try_from(-code).unwrap_or(libc::EIO)));
        }
        let n = (code as usize).min(READ);
        for entry in &entries[..n] {
            let index = self.index(entry.op_context);
            if entry.flags & raw::FI_REMOTE_WRITE != 0 {
                sink(Completion {
                    outcome: Outcome::Arrived {
                        data: entry.data,
                        len: entry.len,
                    },
                    receive: index.and_then(|i| i.checked_sub(self.sends)),
                });
            } else if let Some(send) = index.filter(|i| *i < self.sends) {
                sink(Completion {
                    outcome: Outcome::Sent { send },
                    receive: None,
                });
            }
        }
        Ok(n)
    }

    /// What is known of a read that failed.
    fn failure(&self, errno: i32) -> Failed {
        let ofi = self.domain().info().ofi();
        let plain = |what, errno| Failed {
            what,
            errno,
            text: ofi.strerror(errno),
            detail: String::new(),
        };
        match errno {
            raw::FI_EAVAIL => {}
            raw::FI_EOVERRUN => return plain(FULL, errno),
            _ => return plain("fi_cq_read", errno),
        }
        let queue = self.objects.queue;
        // Twice the room: newer libraries write more.
        let mut entry = std::mem::MaybeUninit::<[raw::fi_cq_err_entry; 2]>::zeroed();
        let first = entry.as_mut_ptr().cast::<raw::fi_cq_err_entry>();
        // SAFETY: the queue is open; all zeroes are an entry, which says that there is no room for
        // the provider's own data.
        let entry = unsafe {
            match raw::call!((*queue).ops, readerr(queue, first, 0)) {
                1 => first.read(),
                code => return plain("fi_cq_readerr", i32::try_from(-code).unwrap_or(libc::EIO)),
            }
        };
        let what = match self.index(entry.op_context) {
            _ if entry.err == raw::FI_EOVERRUN => FULL,
            Some(i) if i < self.sends => "a write failed",
            Some(_) => "a receive failed",
            None => "a write of the peer failed",
        };
        let mut words = [0 as c_char; 128];
        // SAFETY: the queue is open, and the text is cut to the room it has.
        let detail = unsafe {
            let (code, data, at) = (entry.prov_errno, entry.err_data, words.as_mut_ptr());
            let say = (*(*queue).ops).strerror;
            let said = say.map_or(ptr::null(), |say| say(queue, code, data, at, 127));
            text(said).unwrap_or_default()
        };
        let mut failed = plain(what, entry.err);
        if !detail.is_empty() && detail != failed.text {
            failed.detail = format!(" [{detail}]");
        }
        failed
    }

    /// A descriptor that is readable when [`Endpoint::poll`] has something to do, where the
    /// provider has one. It stays open as long as the endpoint.
    #[must_use]
    pub fn wait_fd(&self) -> Option<RawFd> {
        self.wait_fd
    }

    /// Before a sleep on the descriptor: false where there is something to poll after all.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        let mut queue: *mut raw::fid = self.objects.queue.cast();
        let fabric = self.domain().fabric();
        // SAFETY: both are open.
        unsafe {
            (*(*fabric).ops)
                .trywait
                .is_some_and(|ask| ask(fabric, &raw mut queue, 1) == 0)
        }
    }
}
