//! Completion queues and their channels.

use std::ffi::{c_int, c_void};
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::device::{Context, set_nonblocking};
use crate::error::{Error, OpError, errno_of, last_errno};
use crate::raw;
use crate::wc::Wc;

/// A completion channel: a descriptor that becomes readable when an armed completion queue gets an
/// entry.
///
/// To lose no wake-up, arm the queue, poll once more, and sleep only if that poll is empty. The
/// poll finds entries from before the arming; later entries make the descriptor readable.
pub struct CompChannel {
    context: Arc<Context>,
    raw: NonNull<raw::ibv_comp_channel>,
}

// SAFETY: libibverbs allows every call on a channel from any thread; only `drop` destroys it.
unsafe impl Send for CompChannel {}
// SAFETY: as for `Send`.
unsafe impl Sync for CompChannel {}

impl CompChannel {
    /// Creates a nonblocking channel.
    pub fn create(context: &Arc<Context>) -> Result<Arc<Self>, Error> {
        let doing = || format!("creating a completion channel on {}", context.name());
        // SAFETY: `context` is open.
        let raw = unsafe { (context.api().create_comp_channel)(context.as_raw()) };
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::verb_errno("ibv_create_comp_channel", doing))?;
        let channel = Self {
            context: Arc::clone(context),
            raw,
        };
        set_nonblocking(channel.as_raw_fd(), doing)?;
        Ok(Arc::new(channel))
    }

    /// Takes all pending events and calls `each` with the token of each event's queue. Returns the
    /// number of events; never blocks.
    ///
    /// # Errors
    /// [`OpError`]; an empty channel is no error.
    pub fn take_events(&self, mut each: impl FnMut(u64)) -> Result<usize, OpError> {
        let mut taken = 0;
        loop {
            let (mut cq, mut token) = (ptr::null_mut(), ptr::null_mut::<c_void>());
            // SAFETY: the channel is live, and both results are writable.
            let result = unsafe {
                (self.context.api().get_cq_event)(self.raw.as_ptr(), &raw mut cq, &raw mut token)
            };
            if result != 0 {
                return match last_errno() {
                    libc::EAGAIN => Ok(taken),
                    libc::EINTR => continue,
                    errno => Err(OpError {
                        verb: "ibv_get_cq_event",
                        errno,
                    }),
                };
            }
            // SAFETY: libibverbs does not destroy a queue with an unacknowledged event, so `cq` is
            // live.
            unsafe { (self.context.api().ack_cq_events)(cq, 1) };
            taken += 1;
            each(token as u64);
        }
    }
}

impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is live, and its descriptor is constant.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        // SAFETY: `create` made the channel, and only this `drop` destroys it. Its queues held an
        // `Arc` of `self` and are gone.
        let result = unsafe { (self.context.api().destroy_comp_channel)(self.raw.as_ptr()) };
        if result != 0 {
            mem::forget(Arc::clone(&self.context));
        }
    }
}

/// The completions that raise an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notify {
    /// The next completion of any kind.
    Any,
    /// The next receive of a solicited message, or the next error.
    Solicited,
}

/// A completion queue.
pub struct Cq {
    pub(crate) context: Arc<Context>,
    channel: Arc<CompChannel>,
    raw: NonNull<raw::ibv_cq>,
    poll: raw::poll_cq_fn,
    arm: raw::req_notify_cq_fn,
}

// SAFETY: providers lock in every call on a queue; only `drop` destroys it.
unsafe impl Send for Cq {}
// SAFETY: as for `Send`.
unsafe impl Sync for Cq {}

impl Cq {
    /// Creates a queue of at least `cqe` entries. `channel` receives its events, each with `token`;
    /// `comp_vector`, below [`Context::num_comp_vectors`], selects the interrupt. An overflow
    /// breaks the queue for good, so `cqe` must cover all outstanding receives and signaled sends.
    ///
    /// # Errors
    /// [`Error::Verb`]: more entries than the device allows, or a channel of another device.
    pub fn create(
        context: &Arc<Context>,
        cqe: u32,
        channel: &Arc<CompChannel>,
        token: u64,
        comp_vector: u32,
    ) -> Result<Arc<Self>, Error> {
        context.check_same("ibv_create_cq", &channel.context)?;
        let doing = || {
            format!(
                "creating a completion queue of {cqe} entries on {}",
                context.name()
            )
        };
        let (Ok(entries), Ok(vector)) = (c_int::try_from(cqe), c_int::try_from(comp_vector)) else {
            return Err(Error::verb("ibv_create_cq", libc::EINVAL, doing));
        };
        let (poll, arm) = {
            // SAFETY: `context` is open, and its operations table is constant.
            let ops = unsafe { &(*context.as_raw()).ops };
            ops.poll_cq
                .zip(ops.req_notify_cq)
                .ok_or_else(|| unsupported("polling completion queues", context))?
        };
        let raw_channel = channel.raw.as_ptr();
        let token = ptr::without_provenance_mut::<c_void>(token as usize);
        // SAFETY: context and channel are live; the token is returned and never dereferenced.
        let raw = unsafe {
            (context.api().create_cq)(context.as_raw(), entries, token, raw_channel, vector)
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::verb_errno("ibv_create_cq", doing))?;
        Ok(Arc::new(Self {
            context: Arc::clone(context),
            channel: Arc::clone(channel),
            raw,
            poll,
            arm,
        }))
    }

    /// Moves up to `wcs.len()` entries into `wcs`, oldest first, and returns their number.
    /// Allocates nothing and never blocks.
    ///
    /// # Errors
    /// [`OpError`]; the queue is then unusable.
    pub fn poll(&self, wcs: &mut [Wc]) -> Result<usize, OpError> {
        let room = c_int::try_from(wcs.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is live; `Wc` is an `ibv_wc`, and `room` of them are writable.
        let taken = unsafe { (self.poll)(self.raw.as_ptr(), room, wcs.as_mut_ptr().cast()) };
        usize::try_from(taken).map_err(|_| OpError {
            verb: "ibv_poll_cq",
            errno: errno_of(taken),
        })
    }

    /// Arms the queue for one event on its channel. Existing entries raise no event: poll again
    /// before sleeping.
    pub fn arm(&self, notify: Notify) -> Result<(), OpError> {
        let solicited = c_int::from(notify == Notify::Solicited);
        // SAFETY: the queue is live.
        match unsafe { (self.arm)(self.raw.as_ptr(), solicited) } {
            0 => Ok(()),
            result => Err(OpError {
                verb: "ibv_req_notify_cq",
                errno: errno_of(result),
            }),
        }
    }

    /// The raw queue, valid as long as `self`.
    pub(crate) fn as_raw(&self) -> *mut raw::ibv_cq {
        self.raw.as_ptr()
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: `create` made the queue, and only this `drop` destroys it. Its queue pairs held
        // an `Arc` of `self` and are gone.
        let result = unsafe { (self.context.api().destroy_cq)(self.raw.as_ptr()) };
        if result != 0 {
            mem::forget((Arc::clone(&self.context), self.channel.clone()));
        }
    }
}

/// The error for an operation that the provider's table lacks.
pub(crate) fn unsupported(what: &'static str, context: &Context) -> Error {
    let device = context.name();
    Error::Refused(format!(
        "{what} is not supported by the provider of {device}"
    ))
}
