//! The completion queue of an endpoint: completions, errors, and waiting.

use std::ffi::{c_char, c_void};
use std::os::fd::RawFd;
use std::ptr;

use super::endpoint::Endpoint;
use super::library::text;
use crate::error::OpError;
use crate::raw;

/// Maximum number of completions per read.
const READ: usize = 32;

/// Error text of a queue overrun.
const FULL: &str = "the completion queue is full, and completions are lost";

/// Result of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A write is complete, and its source is free.
    Sent {
        /// Number of the send.
        send: usize,
    },
    /// A write of the peer has arrived.
    Arrived {
        /// Immediate data of the write.
        data: u64,
        /// Length if the provider reports it; not guaranteed.
        len: usize,
    },
}

/// An [`Outcome`], with the consumed receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The result.
    pub outcome: Outcome,
    /// The consumed receive, to be posted again.
    pub receive: Option<usize>,
}

/// Error of an operation, or of the whole endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {text} ({errno}){detail}")]
pub struct Failed {
    /// The failed operation or call.
    pub what: &'static str,
    /// libfabric's error number.
    pub errno: i32,
    /// libfabric's text for it.
    pub text: String,
    /// The provider's text in brackets, or empty.
    pub detail: String,
}

impl Endpoint {
    fn index(&self, context: *mut c_void) -> Option<usize> {
        let base = self.contexts.as_ptr() as usize;
        let at = (context as usize).checked_sub(base)? / size_of::<raw::fi_context2>();
        (at < self.contexts.len()).then_some(at)
    }

    /// Posts receive number `receive`, from 0, for a write with data.
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
        // SAFETY: the endpoint is open. A receive of zero bytes uses only its context, which lives
        // until the endpoint is closed.
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

    /// Drives the provider's progress, and passes completions to `sink`. Returns their number.
    ///
    /// # Errors
    ///
    /// [`Failed`]: an operation or the queue failed. Earlier completions were passed to `sink`.
    pub fn poll(&self, sink: &mut dyn FnMut(Completion)) -> Result<usize, Failed> {
        let mut entries = [raw::fi_cq_data_entry {
            op_context: ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: ptr::null_mut(),
            data: 0,
        }; READ];
        let queue = self.objects.queue;
        // SAFETY: the queue is open; the call writes at most `READ` entries of the queue's format.
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

    /// Builds the error of a failed read.
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
        // Twice the size: newer libraries write longer entries.
        let mut entry = std::mem::MaybeUninit::<[raw::fi_cq_err_entry; 2]>::zeroed();
        let first = entry.as_mut_ptr().cast::<raw::fi_cq_err_entry>();
        // SAFETY: the queue is open; all zeroes are a valid entry without a buffer for the
        // provider's data.
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
        // SAFETY: the queue is open, and the call truncates the text to its buffer.
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

    /// Returns a descriptor that is readable when [`Endpoint::poll`] has work, if the provider has
    /// one. It stays open as long as the endpoint.
    #[must_use]
    pub fn wait_fd(&self) -> Option<RawFd> {
        self.wait_fd
    }

    /// Whether a wait on the descriptor is safe; false if completions are pending.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        let mut queue: *mut raw::fid = self.objects.queue.cast();
        let fabric = self.domain().fabric();
        // SAFETY: queue and fabric are open.
        unsafe {
            (*(*fabric).ops)
                .trywait
                .is_some_and(|ask| ask(fabric, &raw mut queue, 1) == 0)
        }
    }
}
