//! Chains of work requests: allocated once, posted with one call.
//!
//! All accesses use pointers derived from the whole buffer. So a pointer stored in one work request
//! stays valid while another work request is written.

use std::ffi::c_int;
use std::mem::size_of;
use std::ptr;

use crate::error::{OpError, errno_of};
use crate::mr::{LocalSlice, RemoteSlice};
use crate::raw;

/// The payload of a write.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// No bytes: with an immediate, a pure notification.
    Empty,
    /// Bytes inside the work request. `push` copies them.
    Inline(&'a [u8]),
    /// Bytes of a memory region. The device reads them when it executes the write: they must stay
    /// unchanged until the write is retired.
    Region(LocalSlice),
}

/// A work request and the scatter/gather entry of its `sg_list`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SendEntry {
    wr: raw::ibv_send_wr,
    sge: raw::ibv_sge,
}

/// Writes that wait for their doorbell.
///
/// Pushing and posting allocate nothing. If the device takes only some writes, the rest stay in
/// order.
pub struct SendChain {
    /// `head..tail` are filled and not yet posted.
    entries: Vec<SendEntry>,
    head: usize,
    tail: usize,
    /// Inline bytes of all entries, `inline_bytes` each.
    inline: Vec<u8>,
    inline_bytes: usize,
}

// SAFETY: the entries point into the chain's two heap buffers, which stay put when it moves.
unsafe impl Send for SendChain {}

impl SendChain {
    /// A chain of up to `capacity` writes with up to `inline_bytes` inline bytes each.
    /// `inline_bytes` must not exceed the queue pair's `max_inline_data`.
    pub fn new(capacity: usize, inline_bytes: usize) -> Self {
        // SAFETY: null pointers and zeroes are valid for every field.
        let empty: SendEntry = unsafe { std::mem::zeroed() };
        Self {
            entries: vec![empty; capacity],
            head: 0,
            tail: 0,
            inline: vec![0; capacity.saturating_mul(inline_bytes)],
            inline_bytes,
        }
    }

    /// Number of waiting writes.
    pub fn len(&self) -> usize {
        self.tail - self.head
    }

    /// Whether no write waits.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Number of free entries.
    pub fn room(&self) -> usize {
        self.entries.len() - self.tail
    }

    /// Marks the last waiting write solicited. The sender knows the last write of a burst only at
    /// its end.
    pub fn solicit_last(&mut self) {
        if !self.is_empty() {
            let last = self.entries.as_mut_ptr().wrapping_add(self.tail - 1);
            // SAFETY: `tail - 1` is a filled entry, since the chain is not empty.
            unsafe { (*last).wr.send_flags |= raw::IBV_SEND_SOLICITED };
        }
    }

    /// Appends an RDMA WRITE of `payload` to `remote`. With `imm` it is a WRITE_WITH_IMM: it
    /// consumes a receive of the peer, and that receive's completion carries `imm`. The write
    /// completes here with `wr_id` if it is `signaled` or fails.
    ///
    /// Returns false, and changes nothing, if no entry is free or the inline payload exceeds the
    /// chain's inline bytes.
    pub fn push(
        &mut self,
        wr_id: u64,
        payload: Payload<'_>,
        remote: RemoteSlice,
        imm: Option<u32>,
        signaled: bool,
    ) -> bool {
        let inline = match payload {
            Payload::Inline(bytes) => bytes.len(),
            Payload::Empty | Payload::Region(_) => 0,
        };
        if self.room() == 0 || inline > self.inline_bytes {
            return false;
        }
        let mut flags = 0;
        let (sge, num_sge) = match payload {
            Payload::Empty => (raw::ibv_sge::default(), 0),
            Payload::Region(slice) => {
                let (addr, length, lkey) = (slice.addr, slice.len, slice.lkey);
                (raw::ibv_sge { addr, length, lkey }, 1)
            }
            Payload::Inline(bytes) => {
                flags |= raw::IBV_SEND_INLINE;
                (self.copy_inline(bytes), c_int::from(!bytes.is_empty()))
            }
        };
        if signaled {
            flags |= raw::IBV_SEND_SIGNALED;
        }
        let entry = self.entries.as_mut_ptr().wrapping_add(self.tail);
        // SAFETY: `room` is not 0, so entry `tail` exists and is free.
        unsafe {
            (*entry).sge = sge;
            let wr = &raw mut (*entry).wr;
            (*wr).wr_id = wr_id;
            (*wr).sg_list = &raw mut (*entry).sge;
            (*wr).num_sge = num_sge;
            (*wr).send_flags = flags;
            (*wr).wr.rdma = raw::ibv_wr_rdma {
                remote_addr: remote.addr,
                rkey: remote.rkey,
            };
            match imm {
                Some(imm) => {
                    (*wr).opcode = raw::IBV_WR_RDMA_WRITE_WITH_IMM;
                    (*wr).imm_data = imm.to_be();
                }
                None => (*wr).opcode = raw::IBV_WR_RDMA_WRITE,
            }
        }
        self.tail += 1;
        true
    }

    /// Copies a payload of at most `inline_bytes` into the inline bytes of the free entry.
    fn copy_inline(&mut self, bytes: &[u8]) -> raw::ibv_sge {
        // SAFETY: entry `tail` is free and owns these `inline_bytes` of the buffer. Only work
        // requests that are not yet posted point there.
        let own = unsafe {
            let own = self.inline.as_mut_ptr().add(self.tail * self.inline_bytes);
            ptr::copy_nonoverlapping(bytes.as_ptr(), own, bytes.len());
            own
        };
        raw::ibv_sge {
            addr: own as u64,
            length: bytes.len() as u32,
            lkey: 0,
        }
    }

    /// Links the waiting writes and passes the first to `doorbell`, which returns the verb's result
    /// and the first refused work request.
    pub(crate) fn post(
        &mut self,
        doorbell: impl FnOnce(*mut raw::ibv_send_wr, *mut *mut raw::ibv_send_wr) -> c_int,
    ) -> Result<(), OpError> {
        let count = self.len();
        if count == 0 {
            return Ok(());
        }
        let base = self.entries.as_mut_ptr();
        // SAFETY: `head..tail` lies within the entries.
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
        match taken {
            Ok(()) => (self.head, self.tail) = (0, 0),
            Err((posted, _)) => self.head += posted,
        }
        taken.map_err(|(_, error)| error)
    }
}

/// Receives without memory, for RDMA WRITEs with immediate. Their `wr_id` is 0.
pub struct RecvChain {
    /// A linked list: each receive points to the next.
    receives: Vec<raw::ibv_recv_wr>,
}

// SAFETY: the receives point into the chain's own heap buffer, which stays put when it moves.
unsafe impl Send for RecvChain {}

impl RecvChain {
    /// A chain that posts up to `capacity` receives at a time.
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
            // SAFETY: both indices lie within the buffer.
            unsafe { (*base.add(index - 1)).next = base.add(index) };
        }
        Self { receives }
    }

    /// Passes `count` receives to `doorbell`, at most all of them, as [`SendChain::post`] does.
    /// Returns the number of posted receives.
    pub(crate) fn post(
        &mut self,
        count: usize,
        doorbell: impl FnOnce(*mut raw::ibv_recv_wr, *mut *mut raw::ibv_recv_wr) -> c_int,
    ) -> Result<usize, OpError> {
        let count = count.min(self.receives.len());
        if count == 0 {
            return Ok(0);
        }
        let first = self.receives.as_mut_ptr();
        let last = first.wrapping_add(count - 1);
        // SAFETY: `last` lies within the buffer, since `count` is at most its length.
        let next = unsafe { ptr::replace(&raw mut (*last).next, ptr::null_mut()) };
        let mut bad = ptr::null_mut();
        let result = doorbell(first, &raw mut bad);
        // SAFETY: as for the read of `next`.
        unsafe { (*last).next = next };
        let taken = outcome("ibv_post_recv", result, first, bad, count);
        taken.map(|()| count).map_err(|(_, error)| error)
    }
}

/// Decodes a verb's result for the `count` entries from `first` on. A failure gives the number of
/// posted entries and the error. If `bad`, the refused entry, lies outside the entries, the number
/// is 0.
fn outcome<T, Wr>(
    verb: &'static str,
    returned: c_int,
    first: *mut T,
    bad: *mut Wr,
    count: usize,
) -> Result<(), (usize, OpError)> {
    if returned == 0 {
        return Ok(());
    }
    let errno = errno_of(returned);
    let bytes = (bad as usize).checked_sub(first as usize);
    let posted = match bytes.map(|bytes| bytes / size_of::<T>()) {
        Some(posted) if posted < count => posted,
        _ => 0,
    };
    Err((posted, OpError { verb, errno }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(chain: &mut SendChain, payload: Payload<'_>) -> bool {
        let (addr, rkey) = (0x1000, 7);
        chain.push(0, payload, RemoteSlice { addr, rkey }, Some(3), false)
    }

    #[test]
    fn a_wild_pointer_counts_as_nothing_posted() {
        let mut chain = SendChain::new(2, 0);
        assert!(push(&mut chain, Payload::Empty));
        let error = chain.post(|_, bad| {
            // SAFETY: `bad` is writable through the call.
            unsafe { *bad = ptr::null_mut() };
            libc::EINVAL
        });
        assert!(!error.expect_err("refused").is_full());
        assert_eq!(chain.len(), 1);
    }

    #[test]
    fn refused_writes_stay_in_the_chain() {
        let mut chain = SendChain::new(3, 0);
        (0..3).for_each(|_| assert!(push(&mut chain, Payload::Empty)));
        let error = chain.post(|first, bad| {
            // SAFETY: `first` is the head of three linked writes.
            unsafe { *bad = (*first).next };
            libc::ENOMEM
        });
        let error = error.expect_err("refused");
        assert!(error.is_full(), "{error}");
        assert!(error.to_string().contains("the queue is full"), "{error}");
        assert_eq!(chain.len(), 2);
    }

    #[test]
    fn a_chain_of_receives_can_be_posted_again() {
        let mut chain = RecvChain::new(3);
        let partial = chain.post(3, |first, bad| {
            // SAFETY: `first` is the head of three linked receives.
            unsafe { *bad = (*first).next };
            libc::ENOMEM
        });
        partial.expect_err("refused");
        let mut linked = 0;
        for count in [1, 2, 9] {
            let posted = chain.post(count, |mut wr, _| {
                while !wr.is_null() {
                    linked += 1;
                    // SAFETY: `wr` is a receive that the chain under test has linked.
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
        assert!(!push(&mut chain, Payload::Inline(&[0; 9])), "too long");
        for id in 0..2_u8 {
            assert!(push(&mut chain, Payload::Inline(&[id; 5])));
        }
        assert!(!push(&mut chain, Payload::Empty), "full");
        let mut seen = Vec::new();
        let posted = chain.post(|mut wr, _| {
            while !wr.is_null() {
                // SAFETY: `wr` is a write that the chain under test has filled and linked; its
                // inline bytes lie at the address.
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
        assert_eq!((posted, seen), (Ok(()), vec![[0; 5], [1; 5]]));
    }
}
