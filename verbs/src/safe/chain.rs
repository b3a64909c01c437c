//! Chains of sends: filled one by one, posted with one doorbell, allocated once.

use std::ffi::c_int;
use std::ptr;

use super::entries::{Entries, Entry};
use super::mr::{LocalSlice, RemoteSlice};
use crate::error::PostError;
use crate::raw;

/// What a write carries.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// Nothing: with an immediate, a bare signal.
    Empty,
    /// Bytes that ride in the work request itself, one part after the other. They are copied when
    /// the write is pushed, so they may be gone before it is posted.
    Inline(&'a [&'a [u8]]),
    /// Bytes that the device fetches from a memory region when it carries the write out: they must
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

/// Why a work request was not taken into a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The chain is full: post it first.
    #[error("the chain of {capacity} work requests is full: post it first")]
    Full {
        /// How many it holds.
        capacity: usize,
    },
    /// More bytes than the chain was made for.
    #[error("{len} bytes are too many to ride inline, {max} are allowed")]
    InlineTooLong {
        /// How many bytes.
        len: usize,
        /// How many are allowed.
        max: usize,
    },
}

/// A work request and what its `sg_list` points to.
#[repr(C)]
#[derive(Clone, Copy)]
struct SendEntry {
    wr: raw::ibv_send_wr,
    sge: raw::ibv_sge,
}

// SAFETY: `repr(C)`, and `wr` is the first field.
unsafe impl Entry for SendEntry {
    type Wr = raw::ibv_send_wr;

    unsafe fn next(entry: *mut Self) -> *mut *mut raw::ibv_send_wr {
        // SAFETY: the caller's promise.
        unsafe { &raw mut (*entry).wr.next }
    }
}

/// Writes waiting for their doorbell.
///
/// Pushing and posting allocate nothing. When the device takes only the first of them, the rest
/// stay in the chain, in order.
pub struct SendChain {
    entries: Entries<SendEntry>,
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
        let wr = raw::ibv_send_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
            opcode: raw::IBV_WR_RDMA_WRITE,
            send_flags: 0,
            imm_data: 0,
            wr: raw::ibv_wr_target {
                rdma: raw::ibv_wr_rdma {
                    remote_addr: 0,
                    rkey: 0,
                },
            },
            qp_type: 0,
            bind_mw: [0; 6],
        };
        let sge = raw::ibv_sge::default();
        Self {
            entries: Entries::new(SendEntry { wr, sge }, capacity),
            inline: vec![0; capacity.saturating_mul(inline_bytes)],
            inline_bytes,
        }
    }

    /// How many writes wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many more fit in.
    #[must_use]
    pub fn room(&self) -> usize {
        self.entries.room()
    }

    /// Drops what waits.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Makes the last that waits a solicited one: what a burst ends with is known only when it
    /// ends.
    pub fn solicit_last(&mut self) {
        if let Some(entry) = self.entries.last() {
            // SAFETY: a filled entry.
            unsafe { (*entry).wr.send_flags |= raw::IBV_SEND_SOLICITED };
        }
    }

    /// Appends a write.
    ///
    /// # Errors
    ///
    /// [`PushError`]; the chain is then as it was.
    pub fn push(&mut self, write: &Write<'_>) -> Result<(), PushError> {
        let index = self.entries.free()?;
        let mut flags = 0;
        let (sge, num_sge) = match write.payload {
            Payload::Empty => (raw::ibv_sge::default(), 0),
            Payload::Region(slice) => (sge(slice), 1),
            Payload::Inline(parts) => {
                flags |= raw::IBV_SEND_INLINE;
                let inline = self.take_inline(index, parts)?;
                (inline, c_int::from(inline.length > 0))
            }
        };
        if write.signaled {
            flags |= raw::IBV_SEND_SIGNALED;
        }
        if write.solicited {
            flags |= raw::IBV_SEND_SOLICITED;
        }
        let entry = self.entries.at(index);
        // SAFETY: the free entry.
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
        self.entries.filled();
        Ok(())
    }

    /// Copies the parts into the entry's own inline bytes.
    fn take_inline(&mut self, index: usize, parts: &[&[u8]]) -> Result<raw::ibv_sge, PushError> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len > self.inline_bytes {
            return Err(PushError::InlineTooLong {
                len,
                max: self.inline_bytes,
            });
        }
        // SAFETY: the entry's bytes are within the buffer, whose length is entries times bytes.
        let start = unsafe { self.inline.as_mut_ptr().add(index * self.inline_bytes) };
        let mut at = start;
        for part in parts {
            // SAFETY: all parts together fit into the entry's bytes; nothing else points there but
            // entries not yet posted, and no entry shares its bytes with another.
            unsafe {
                ptr::copy_nonoverlapping(part.as_ptr(), at, part.len());
                at = at.add(part.len());
            }
        }
        Ok(raw::ibv_sge {
            addr: start as u64,
            length: len as u32,
            lkey: 0,
        })
    }

    /// Links what waits and gives it to `doorbell`, which returns what the verb returned and the
    /// first work request that it did not take. Returns how many were taken.
    pub(crate) fn post(
        &mut self,
        verb: &'static str,
        doorbell: impl FnOnce(*mut raw::ibv_send_wr, *mut *mut raw::ibv_send_wr) -> c_int,
    ) -> Result<usize, PostError> {
        self.entries.post(verb, doorbell)
    }
}

fn sge(slice: LocalSlice) -> raw::ibv_sge {
    raw::ibv_sge {
        addr: slice.addr,
        length: slice.len,
        lkey: slice.lkey,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: RemoteSlice = RemoteSlice {
        addr: 0x1000,
        rkey: 7,
    };

    fn write(wr_id: u64) -> Write<'static> {
        Write {
            wr_id,
            payload: Payload::Empty,
            remote: REMOTE,
            imm: None,
            signaled: false,
            solicited: false,
        }
    }

    /// Follows the links as a provider does.
    fn ids(mut wr: *mut raw::ibv_send_wr) -> Vec<u64> {
        let mut ids = Vec::new();
        while !wr.is_null() {
            // SAFETY: the chain under test linked it.
            unsafe {
                ids.push((*wr).wr_id);
                wr = (*wr).next;
            }
        }
        ids
    }

    #[test]
    fn one_doorbell_sees_the_whole_chain_in_order() {
        let mut chain = SendChain::new(4, 0);
        for round in 0..3 {
            for id in 0..4 {
                chain.push(&write(round * 4 + id)).expect("room");
            }
            assert_eq!(chain.push(&write(9)), Err(PushError::Full { capacity: 4 }));
            let mut seen = Vec::new();
            let posted = chain.post("ibv_post_send", |first, _| {
                seen = ids(first);
                0
            });
            assert_eq!(posted, Ok(4));
            assert_eq!(seen, (round * 4..round * 4 + 4).collect::<Vec<_>>());
            assert!(chain.is_empty());
        }
        assert_eq!(
            chain.post("ibv_post_send", |_, _| unreachable!("nothing to post")),
            Ok(0)
        );
    }

    #[test]
    fn what_the_device_refused_stays_and_is_posted_next() {
        let mut chain = SendChain::new(8, 0);
        for id in 0..5 {
            chain.push(&write(id)).expect("room");
        }
        let partial = chain.post("ibv_post_send", |first, bad| {
            // SAFETY: the third of five linked work requests.
            unsafe { *bad = (*(*first).next).next };
            libc::ENOMEM
        });
        assert_eq!(
            partial,
            Err(PostError {
                verb: "ibv_post_send",
                errno: libc::ENOMEM,
                posted: 2,
                left: 3
            })
        );
        chain.push(&write(5)).expect("room behind the rest");
        let mut seen = Vec::new();
        let rest = chain.post("ibv_post_send", |first, _| {
            seen = ids(first);
            0
        });
        assert_eq!((rest, seen), (Ok(4), vec![2, 3, 4, 5]));
        assert_eq!(chain.room(), 8);
    }

    #[test]
    fn the_last_of_a_burst_can_be_solicited() {
        let mut chain = SendChain::new(2, 0);
        chain.solicit_last();
        chain.push(&write(0)).expect("room");
        chain.push(&write(1)).expect("room");
        chain.solicit_last();
        let mut solicited = Vec::new();
        let posted = chain.post("ibv_post_send", |mut wr, _| {
            while !wr.is_null() {
                // SAFETY: the chain under test filled and linked it.
                unsafe {
                    solicited.push((*wr).send_flags & raw::IBV_SEND_SOLICITED != 0);
                    wr = (*wr).next;
                }
            }
            0
        });
        assert_eq!((posted, solicited), (Ok(2), vec![false, true]));
    }

    #[test]
    fn a_wild_pointer_counts_as_nothing_posted() {
        let mut chain = SendChain::new(2, 0);
        chain.push(&write(0)).expect("room");
        let error = chain.post("ibv_post_send", |_, bad| {
            // SAFETY: the result is writable.
            unsafe { *bad = ptr::null_mut() };
            libc::EINVAL
        });
        assert_eq!(
            error.map_err(|error| (error.posted, error.left)),
            Err((0, 1))
        );
    }

    #[test]
    fn inline_bytes_are_the_entrys_own() {
        let mut chain = SendChain::new(2, 8);
        for id in 0..2_u8 {
            let part = [id; 4];
            let parts: [&[u8]; 2] = [&part, &[0xff]];
            chain
                .push(&Write {
                    payload: Payload::Inline(&parts),
                    imm: Some(3),
                    ..write(u64::from(id))
                })
                .expect("room");
        }
        let nine: [&[u8]; 1] = [&[0; 9]];
        chain.clear();
        let refused = chain.push(&Write {
            payload: Payload::Inline(&nine),
            ..write(0)
        });
        assert_eq!(refused, Err(PushError::InlineTooLong { len: 9, max: 8 }));
        (0..2).for_each(|_| chain.entries.filled());
        let mut seen = Vec::new();
        let posted = chain.post("ibv_post_send", |mut wr, _| {
            while !wr.is_null() {
                // SAFETY: the chain under test filled and linked it; inline bytes lie behind the
                // address.
                unsafe {
                    assert_eq!((*wr).num_sge, 1);
                    assert_eq!((*wr).opcode, raw::IBV_WR_RDMA_WRITE_WITH_IMM);
                    assert_ne!((*wr).send_flags & raw::IBV_SEND_INLINE, 0);
                    let sge = *(*wr).sg_list;
                    let bytes = std::slice::from_raw_parts(
                        ptr::with_exposed_provenance::<u8>(sge.addr as usize),
                        5,
                    );
                    seen.push(bytes.to_vec());
                    wr = (*wr).next;
                }
            }
            0
        });
        assert_eq!(posted, Ok(2));
        assert_eq!(seen, [vec![0, 0, 0, 0, 0xff], vec![1, 1, 1, 1, 0xff]]);
    }
}
