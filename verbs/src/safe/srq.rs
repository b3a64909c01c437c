//! Shared receive queues.

use std::fmt;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::cq::unsupported;
use super::mr::Pd;
use super::recv_chain::RecvChain;
use crate::error::{Error, PostError};
use crate::raw;

/// A receive queue that several queue pairs draw from.
pub struct Srq {
    pd: Arc<Pd>,
    raw: NonNull<raw::ibv_srq>,
    post: raw::post_srq_recv_fn,
}

// SAFETY: providers lock inside of every call on a queue; it is destroyed only in `drop`.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// Creates one for up to `max_wr` receives.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`], or the verb's.
    pub fn create(pd: &Arc<Pd>, max_wr: u32) -> Result<Arc<Self>, Error> {
        let context = pd.context();
        let limit = context.limits().max_srq_wr;
        context.check_limit(
            "a shared receive queue in receives",
            u64::from(max_wr),
            u64::from(limit),
            "max_srq_wr",
        )?;
        // SAFETY: the context is open; its table does not change.
        let post = unsafe { (*context.as_raw()).ops.post_srq_recv };
        let post = post.ok_or_else(|| unsupported("a shared receive queue", context))?;
        let attr = raw::ibv_srq_attr {
            max_wr,
            max_sge: 1,
            srq_limit: 0,
        };
        let mut init = raw::ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr,
        };
        // SAFETY: the domain is live and the attributes are writable.
        let raw = unsafe { (context.api().create_srq)(pd.as_raw(), &raw mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            Error::verb_errno("ibv_create_srq", || {
                format!(
                    "creating a shared receive queue of {max_wr} receives on {}",
                    context.name()
                )
            })
        })?;
        Ok(Arc::new(Self {
            pd: Arc::clone(pd),
            raw,
            post,
        }))
    }

    /// Posts all of `chain` with one call, and returns how many receives that were.
    ///
    /// # Errors
    ///
    /// [`PostError`]; what was not taken is still in the chain.
    pub fn post_recv(&self, chain: &mut RecvChain) -> Result<usize, PostError> {
        chain.post("ibv_post_srq_recv", |first, bad| {
            // SAFETY: the queue is live; the chain linked its own receives and outlives the call.
            unsafe { (self.post)(self.raw.as_ptr(), first, bad) }
        })
    }

    /// The domain it is in.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The raw queue, valid for as long as `self`.
    #[must_use]
    pub fn as_raw(&self) -> *mut raw::ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: created by this library, destroyed once; the queue pairs on it held an `Arc` of `self` and are gone.
        let result = unsafe { (self.pd.context().api().destroy_srq)(self.raw.as_ptr()) };
        if result != 0 {
            mem::forget(Arc::clone(&self.pd));
        }
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq")
            .field("device", &self.pd.context().name())
            .finish_non_exhaustive()
    }
}
