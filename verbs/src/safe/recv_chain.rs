//! Chains of receives: filled one by one, posted together, allocated once.

use std::ffi::c_int;
use std::ptr;

use super::chain::{PushError, distance, sge};
use super::mr::LocalSlice;
use crate::error::{PostError, errno_of};
use crate::raw;

/// A receive and what its `sg_list` points to.
#[repr(C)]
#[derive(Clone, Copy)]
struct RecvEntry {
    wr: raw::ibv_recv_wr,
    sge: raw::ibv_sge,
}

/// Receives waiting to be posted together.
pub struct RecvChain {
    entries: Vec<RecvEntry>,
    head: usize,
    tail: usize,
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
            entries: vec![
                RecvEntry {
                    wr,
                    sge: raw::ibv_sge::default()
                };
                capacity
            ],
            head: 0,
            tail: 0,
        }
    }

    /// How many receives wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tail - self.head
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// How many more fit in.
    #[must_use]
    pub fn room(&self) -> usize {
        self.entries.len() - self.tail
    }

    /// Drops what waits.
    pub fn clear(&mut self) {
        (self.head, self.tail) = (0, 0);
    }

    /// Appends a receive without memory: what an RDMA WRITE with immediate consumes.
    ///
    /// # Errors
    ///
    /// [`PushError::Full`].
    pub fn push(&mut self, wr_id: u64) -> Result<(), PushError> {
        self.push_entry(wr_id, None)
    }

    /// Appends a receive into `slice`, which a peer's SEND fills.
    ///
    /// # Errors
    ///
    /// [`PushError::Full`].
    pub fn push_into(&mut self, wr_id: u64, slice: LocalSlice) -> Result<(), PushError> {
        self.push_entry(wr_id, Some(slice))
    }

    fn push_entry(&mut self, wr_id: u64, slice: Option<LocalSlice>) -> Result<(), PushError> {
        let index = self.tail;
        if index == self.entries.len() {
            return Err(PushError::Full { capacity: index });
        }
        // SAFETY: `index` is within the entries; as in `SendChain::push`, every access goes through a pointer to the whole
        // buffer.
        unsafe {
            let entry = self.entries.as_mut_ptr().add(index);
            (*entry).sge = slice.map(sge).unwrap_or_default();
            (*entry).wr.wr_id = wr_id;
            (*entry).wr.sg_list = &raw mut (*entry).sge;
            (*entry).wr.num_sge = c_int::from(slice.is_some());
        }
        self.tail = index + 1;
        Ok(())
    }

    /// As `SendChain::post`.
    pub(crate) fn post(
        &mut self,
        verb: &'static str,
        doorbell: impl FnOnce(*mut raw::ibv_recv_wr, *mut *mut raw::ibv_recv_wr) -> c_int,
    ) -> Result<usize, PostError> {
        let count = self.len();
        if count == 0 {
            return Ok(0);
        }
        let base = self.entries.as_mut_ptr();
        // SAFETY: `head..tail` is within the entries.
        let first = unsafe {
            for index in self.head..self.tail - 1 {
                (*base.add(index)).wr.next = base.add(index + 1).cast();
            }
            (*base.add(self.tail - 1)).wr.next = ptr::null_mut();
            base.add(self.head).cast::<raw::ibv_recv_wr>()
        };
        let mut bad = ptr::null_mut();
        let result = doorbell(first, &raw mut bad);
        if result == 0 {
            self.clear();
            return Ok(count);
        }
        let errno = errno_of(result);
        let posted = distance::<RecvEntry>(first as usize, bad as usize, count);
        self.head += posted;
        Err(PostError {
            verb,
            errno,
            posted,
            left: count - posted,
        })
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
