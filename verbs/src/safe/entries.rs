//! What a chain of work requests is made of: entries in one buffer, filled in turn, linked when
//! they are posted.

use std::ffi::c_int;
use std::mem::size_of;
use std::ptr;

use super::chain::PushError;
use crate::error::{PostError, errno_of};

/// A work request and what it points to.
///
/// # Safety
///
/// The work request is the first field (`repr(C)`): a pointer to the entry is one to it.
pub(super) unsafe trait Entry: Copy {
    /// The work request.
    type Wr;

    /// Where the work request says which one follows.
    ///
    /// # Safety
    ///
    /// `entry` points to an entry.
    unsafe fn next(entry: *mut Self) -> *mut *mut Self::Wr;
}

/// Entries of which `head..tail` are filled and wait.
///
/// Every access goes through a pointer to the whole buffer, so that the pointers stored in one
/// entry stay valid while another is written.
pub(super) struct Entries<E> {
    entries: Vec<E>,
    /// The first that is not posted.
    head: usize,
    /// After the last that is filled.
    tail: usize,
}

impl<E: Entry> Entries<E> {
    pub(super) fn new(entry: E, capacity: usize) -> Self {
        Self {
            entries: vec![entry; capacity],
            head: 0,
            tail: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.tail - self.head
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    pub(super) fn room(&self) -> usize {
        self.entries.len() - self.tail
    }

    pub(super) fn clear(&mut self) {
        (self.head, self.tail) = (0, 0);
    }

    /// The index of the entry to fill next.
    pub(super) fn free(&self) -> Result<usize, PushError> {
        match self.room() {
            0 => Err(PushError::Full {
                capacity: self.tail,
            }),
            _ => Ok(self.tail),
        }
    }

    /// An entry; to be written to where `index` came from [`Self::free`] or is that of one that
    /// waits.
    pub(super) fn at(&mut self, index: usize) -> *mut E {
        debug_assert!(index < self.entries.len());
        self.entries.as_mut_ptr().wrapping_add(index)
    }

    /// The last that waits.
    pub(super) fn last(&mut self) -> Option<*mut E> {
        (!self.is_empty()).then(|| self.at(self.tail - 1))
    }

    /// The free one is filled: it waits from now on.
    pub(super) fn filled(&mut self) {
        self.tail += 1;
    }

    /// Links what waits and gives it to `doorbell`, which returns what the verb returned and the
    /// first work request that it did not take. Returns how many were taken.
    pub(super) fn post(
        &mut self,
        verb: &'static str,
        doorbell: impl FnOnce(*mut E::Wr, *mut *mut E::Wr) -> c_int,
    ) -> Result<usize, PostError> {
        let count = self.len();
        if count == 0 {
            return Ok(0);
        }
        let base = self.entries.as_mut_ptr();
        // SAFETY: `head..tail` is within the entries.
        let first = unsafe {
            for index in self.head..self.tail - 1 {
                *E::next(base.add(index)) = base.add(index + 1).cast();
            }
            *E::next(base.add(self.tail - 1)) = ptr::null_mut();
            base.add(self.head).cast::<E::Wr>()
        };
        let mut bad = ptr::null_mut();
        let result = doorbell(first, &raw mut bad);
        if result == 0 {
            self.clear();
            return Ok(count);
        }
        let errno = errno_of(result);
        let posted = distance::<E>(first as usize, bad as usize, count);
        self.head += posted;
        Err(PostError {
            verb,
            errno,
            posted,
            left: count - posted,
        })
    }
}

/// How many entries lie between the first and the one that failed; 0 for a pointer that is no entry
/// of the chain.
fn distance<E>(first: usize, bad: usize, count: usize) -> usize {
    match bad.checked_sub(first).map(|bytes| bytes / size_of::<E>()) {
        Some(posted) if posted < count => posted,
        _ => 0,
    }
}
