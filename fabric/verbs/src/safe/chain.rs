//! Chains of work requests: allocated once, and posted with one call.
//!
//! Every access goes through a pointer to the whole buffer, so that the pointers stored in one work
//! request stay valid while another is written.

use std::ffi::c_int;
use std::mem::size_of;
use std::ptr;

use super::mr::{LocalSlice, RemoteSlice};
use crate::error::{PostError, errno_of};
use crate::raw;

/// What a write carries.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// Nothing: with an immediate, a bare signal.
    Empty,
    /// Bytes in the work request itself. `push` copies them.
    Inline(&'a [u8]),
    /// Bytes that the device reads from a memory region when it carries the write out: they must
    /// stay until the write is retired.
    Region(LocalSlice),
}

/// One RDMA WRITE.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// Comes back in the completion, when there is one.
    pub wr_id: u64,
    /// What to write.
    pub payload: Payload<'a>,
    /// Where to.
    pub remote: RemoteSlice,
    /// Makes it a WRITE_WITH_IMM: consumes a receive of the peer and completes there with this
    /// number.
    pub imm: Option<u32>,
    /// Whether it completes here when it succeeds. (It always does when it fails.)
    pub signaled: bool,
    /// Whether it wakes a peer that sleeps for solicited completions only.
    pub solicited: bool,
}

/// Why a work request was not taken into a chain, which is then as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The chain is full: post it first.
    #[error("the chain is full: post it first")]
    Full,
    /// More bytes than the chain was made for.
    #[error("too many bytes to ride inline in this chain")]
    InlineTooLong,
}

/// A work request and what its `sg_list` points to.
#[repr(C)]
#[derive(Clone, Copy)]
struct SendEntry {
    wr: raw::ibv_send_wr,
    sge: raw::ibv_sge,
}

/// Writes waiting for their doorbell.
///
/// Pushing and posting allocate nothing. When the device takes only the first of them, the rest
/// stay in the chain, in order.
pub struct SendChain {
    /// `head..tail` are filled and not posted.
    entries: Vec<SendEntry>,
    head: usize,
    tail: usize,
    /// `inline_bytes` for each entry.
    inline: Vec<u8>,
    inline_bytes: usize,
}

// SAFETY: the pointers in the entries lead into the chain's own two buffers, which move with it.
unsafe impl Send for SendChain {}

impl SendChain {
    /// A chain of up to `capacity` writes with up to `inline_bytes` inline each. `inline_bytes`
    /// must not exceed what the queue pair was created with.
    #[must_use]
    pub fn new(capacity: usize, inline_bytes: usize) -> Self {
        // SAFETY: null pointers and zeroes are values of every field.
        let empty: SendEntry = unsafe { std::mem::zeroed() };
        Self {
            entries: vec![empty; capacity],
            head: 0,
            tail: 0,
            inline: vec![0; capacity.saturating_mul(inline_bytes)],
            inline_bytes,
        }
    }

    /// How many writes wait.
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

    /// Makes the last that waits a solicited one: what a burst ends with is known only when it
    /// ends.
    pub fn solicit_last(&mut self) {
        if !self.is_empty() {
            let last = self.entries.as_mut_ptr().wrapping_add(self.tail - 1);
            // SAFETY: a filled entry.
            unsafe { (*last).wr.send_flags |= raw::IBV_SEND_SOLICITED };
        }
    }

    /// Appends a write.
    ///
    /// # Errors
    ///
    /// [`PushError`]; the chain is then as it was.
    pub fn push(&mut self, write: &Write<'_>) -> Result<(), PushError> {
        if self.room() == 0 {
            return Err(PushError::Full);
        }
        let mut flags = 0;
        let (sge, num_sge) = match write.payload {
            Payload::Empty => (raw::ibv_sge::default(), 0),
            Payload::Region(slice) => {
                let (addr, length, lkey) = (slice.addr, slice.len, slice.lkey);
                (raw::ibv_sge { addr, length, lkey }, 1)
            }
            Payload::Inline(bytes) => {
                flags |= raw::IBV_SEND_INLINE;
                (self.copy_inline(bytes)?, c_int::from(!bytes.is_empty()))
            }
        };
        if write.signaled {
            flags |= raw::IBV_SEND_SIGNALED;
        }
        if write.solicited {
            flags |= raw::IBV_SEND_SOLICITED;
        }
        let entry = self.entries.as_mut_ptr().wrapping_add(self.tail);
        // SAFETY: there is room, so this entry exists and is free.
        unsafe {
            (*entry).sge = sge;
            let wr = &raw mut (*entry).wr;
            (*wr).wr_id = write.wr_id;
            (*wr).sg_list = &raw mut (*entry).sge;
            (*wr).num_sge = num_sge;
            (*wr).send_flags = flags;
            (*wr).wr.rdma = raw::ibv_wr_rdma {
                remote_addr: write.remote.addr,
                rkey: write.remote.rkey,
            };
            match write.imm {
                Some(imm) => {
                    (*wr).opcode = raw::IBV_WR_RDMA_WRITE_WITH_IMM;
                    (*wr).imm_data = imm.to_be();
                }
                None => (*wr).opcode = raw::IBV_WR_RDMA_WRITE,
            }
        }
        self.tail += 1;
        Ok(())
    }

    /// Copies a payload into the free entry's own inline bytes.
    fn copy_inline(&mut self, bytes: &[u8]) -> Result<raw::ibv_sge, PushError> {
        if bytes.len() > self.inline_bytes {
            return Err(PushError::InlineTooLong);
        }
        // SAFETY: each entry has `inline_bytes` of the buffer for itself. Only work requests that
        // are not yet posted point there.
        let own = unsafe {
            let own = self.inline.as_mut_ptr().add(self.tail * self.inline_bytes);
            ptr::copy_nonoverlapping(bytes.as_ptr(), own, bytes.len());
            own
        };
        Ok(raw::ibv_sge {
            addr: own as u64,
            length: bytes.len() as u32,
            lkey: 0,
        })
    }

    /// Links what waits and gives it to `doorbell`, which returns what the verb returned and the
    /// first work request that it did not take. Returns how many were taken.
    pub(crate) fn post(
        &mut self,
        doorbell: impl FnOnce(*mut raw::ibv_send_wr, *mut *mut raw::ibv_send_wr) -> c_int,
    ) -> Result<usize, PostError> {
        let count = self.len();
        if count == 0 {
            return Ok(0);
        }
        let base = self.entries.as_mut_ptr();
        // SAFETY: `head..tail` is within the entries.
        let first = unsafe {
            for index in self.head..self.tail - 1 {
                (*base.add(index)).wr.next = &raw mut (*base.add(index + 1)).wr;
            }
            (*base.add(self.tail - 1)).wr.next = ptr::null_mut();
            base.add(self.head)
        };
        let mut bad = ptr::null_mut();
        let result = doorbell(first.cast(), &raw mut bad);
        let taken = outcome("ibv_post_send", result, first, bad, count);
        match &taken {
            Ok(_) => self.clear(),
            Err(error) => self.head += error.posted,
        }
        taken
    }
}

/// Receives without memory, which RDMA WRITEs with immediate consume. Each has the number 0.
pub struct RecvChain {
    /// Each is linked to the next one.
    receives: Vec<raw::ibv_recv_wr>,
}

// SAFETY: the pointers in the receives lead into the chain's own buffer, which moves with it.
unsafe impl Send for RecvChain {}

impl RecvChain {
    /// Up to `capacity` receives can be posted at a time.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let receive = raw::ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        let mut receives = vec![receive; capacity];
        let base = receives.as_mut_ptr();
        for index in 1..capacity {
            // SAFETY: both are within the buffer.
            unsafe { (*base.add(index - 1)).next = base.add(index) };
        }
        Self { receives }
    }

    /// Gives `count` receives to `doorbell`, or as many as there are; as [`SendChain::post`].
    pub(crate) fn post(
        &mut self,
        count: usize,
        doorbell: impl FnOnce(*mut raw::ibv_recv_wr, *mut *mut raw::ibv_recv_wr) -> c_int,
    ) -> Result<usize, PostError> {
        let count = count.min(self.receives.len());
        if count == 0 {
            return Ok(0);
        }
        let first = self.receives.as_mut_ptr();
        let last = first.wrapping_add(count - 1);
        // SAFETY: `last` is within the buffer.
        let next = unsafe { ptr::replace(&raw mut (*last).next, ptr::null_mut()) };
        let mut bad = ptr::null_mut();
        let result = doorbell(first, &raw mut bad);
        // SAFETY: as above.
        unsafe { (*last).next = next };
        outcome("ibv_post_recv", result, first, bad, count)
    }
}

/// What a verb's result says of the `count` entries from `first` on. `bad` points to the entry that
/// failed; where it points to none of them, none counts as posted.
fn outcome<Entry, Wr>(
    verb: &'static str,
    returned: c_int,
    first: *mut Entry,
    bad: *mut Wr,
    count: usize,
) -> Result<usize, PostError> {
    if returned == 0 {
        return Ok(count);
    }
    let errno = errno_of(returned);
    let bytes = (bad as usize).checked_sub(first as usize);
    let posted = match bytes.map(|bytes| bytes / size_of::<Entry>()) {
        Some(posted) if posted < count => posted,
        _ => 0,
    };
    Err(PostError {
        verb,
        errno,
        posted,
        left: count - posted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(payload: Payload<'_>) -> Write<'_> {
        Write {
            wr_id: 0,
            payload,
            remote: RemoteSlice {
                addr: 0x1000,
                rkey: 7,
            },
            imm: Some(3),
            signaled: false,
            solicited: false,
        }
    }

    #[test]
    fn a_wild_pointer_counts_as_nothing_posted() {
        let mut chain = SendChain::new(2, 0);
        chain.push(&write(Payload::Empty)).expect("room");
        let error = chain.post(|_, bad| {
            // SAFETY: the result is writable.
            unsafe { *bad = ptr::null_mut() };
            libc::EINVAL
        });
        let error = error.expect_err("refused");
        assert_eq!((error.posted, error.left, chain.len()), (0, 1, 1));
    }

    #[test]
    fn receives_that_are_refused_are_counted_and_the_chain_can_be_posted_again() {
        let mut chain = RecvChain::new(3);
        let partial = chain.post(3, |first, bad| {
            // SAFETY: the second of three linked receives.
            unsafe { *bad = (*first).next };
            libc::ENOMEM
        });
        let error = partial.expect_err("refused");
        assert_eq!((error.posted, error.left), (1, 2));
        let mut linked = 0;
        for count in [1, 2, 9] {
            let posted = chain.post(count, |mut wr, _| {
                while !wr.is_null() {
                    linked += 1;
                    // SAFETY: the chain under test linked it.
                    wr = unsafe { (*wr).next };
                }
                0
            });
            assert_eq!(posted, Ok(count.min(3)));
        }
        assert_eq!(linked, 1 + 2 + 3);
    }

    #[test]
    fn inline_bytes_are_the_entrys_own() {
        let mut chain = SendChain::new(2, 8);
        assert_eq!(
            chain.push(&write(Payload::Inline(&[0; 9]))),
            Err(PushError::InlineTooLong)
        );
        for id in 0..2_u8 {
            chain.push(&write(Payload::Inline(&[id; 5]))).expect("room");
        }
        assert_eq!(chain.push(&write(Payload::Empty)), Err(PushError::Full));
        let mut seen = Vec::new();
        let posted = chain.post(|mut wr, _| {
            while !wr.is_null() {
                // SAFETY: the chain under test filled and linked it; inline bytes lie behind the
                // address.
                unsafe {
                    assert_eq!((*wr).num_sge, 1);
                    assert_ne!((*wr).send_flags & raw::IBV_SEND_INLINE, 0);
                    let at = (*(*wr).sg_list).addr as usize;
                    let bytes = ptr::with_exposed_provenance::<[u8; 5]>(at);
                    seen.push(*bytes);
                    wr = (*wr).next;
                }
            }
            0
        });
        assert_eq!((posted, seen), (Ok(2), vec![[0; 5], [1; 5]]));
    }
}
