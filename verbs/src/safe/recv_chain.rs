//! Chains of receives: filled one by one, posted together, allocated once.

use std::ffi::c_int;
use std::ptr;

use super::chain::PushError;
use super::entries::{Entries, Entry};
use crate::error::PostError;
use crate::raw;

// SAFETY: the entry is the work request.
unsafe impl Entry for raw::ibv_recv_wr {
    type Wr = Self;

    unsafe fn next(entry: *mut Self) -> *mut *mut Self {
        // SAFETY: the caller's promise.
        unsafe { &raw mut (*entry).next }
    }
}

/// Receives waiting to be posted together.
pub struct RecvChain {
    entries: Entries<raw::ibv_recv_wr>,
}

// SAFETY: the pointers in the entries lead into the chain's own buffer, which moves with it.
unsafe impl Send for RecvChain {}

impl RecvChain {
    /// A chain of up to `capacity` receives.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let wr = raw::ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        Self {
            entries: Entries::new(wr, capacity),
        }
    }

    /// How many receives wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Appends a receive without memory: what an RDMA WRITE with immediate consumes.
    ///
    /// # Errors
    ///
    /// [`PushError::Full`].
    pub fn push(&mut self, wr_id: u64) -> Result<(), PushError> {
        let index = self.entries.free()?;
        // SAFETY: the free entry.
        unsafe { (*self.entries.at(index)).wr_id = wr_id };
        self.entries.filled();
        Ok(())
    }

    /// As `SendChain::post`.
    pub(crate) fn post(
        &mut self,
        verb: &'static str,
        doorbell: impl FnOnce(*mut raw::ibv_recv_wr, *mut *mut raw::ibv_recv_wr) -> c_int,
    ) -> Result<usize, PostError> {
        self.entries.post(verb, doorbell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_resume_too() {
        let mut chain = RecvChain::new(3);
        for id in 10..13 {
            chain.push(id).expect("room");
        }
        let partial = chain.post("ibv_post_recv", |first, bad| {
            // SAFETY: the second of three linked receives.
            unsafe { *bad = (*first).next };
            libc::ENOMEM
        });
        assert_eq!(
            partial.map_err(|error| (error.posted, error.left)),
            Err((1, 2))
        );
        let rest = chain.post("ibv_post_recv", |first, _| {
            // SAFETY: the chain under test linked it.
            assert_eq!(unsafe { (*first).wr_id }, 11);
            0
        });
        assert_eq!(rest, Ok(2));
    }
}
