//! The kernel that gathers a batch, and what it is told: chunks. Plain data.
//!
//! * `kernel.cu`: the kernel; `kernel.ptx`: what `accelerator/gpu/ptx.py` makes of it, which the
//!   driver compiles for its GPU when the first worker comes. Nothing of CUDA is needed to build or
//!   to run beside the driver.

use std::mem::size_of;

/// One warp's work; the kernel's `struct Chunk`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(in crate::engine::cuda) struct Chunk {
    /// First byte.
    pub from: u64,
    /// Where it goes.
    pub to: u64,
    /// Bytes copied.
    pub bytes: u32,
    /// Bytes written: behind the copied ones come zeros.
    pub room: u32,
}

const _: () = assert!(size_of::<Chunk>() == 24);

/// Most bytes of a chunk: enough that a warp's start is small beside it, and small enough that a
/// few images keep every warp busy. A multiple of every word that the kernel copies.
const MOST: usize = 16 << 10;

/// Chunks for `pieces` pieces of up to `room` bytes each.
pub(super) fn most(pieces: usize, room: usize) -> usize {
    pieces.saturating_mul(room.div_ceil(MOST).max(1))
}

/// A list that is being written to memory of a fixed length.
#[derive(Debug)]
pub(in crate::engine::cuda) struct List<'a> {
    chunks: &'a mut [Chunk],
    len: usize,
}

impl<'a> List<'a> {
    /// Empty.
    pub fn new(chunks: &'a mut [Chunk]) -> Self {
        List { chunks, len: 0 }
    }

    /// Adds a piece: `bytes` from `from` to `to`, and zeros behind them up to `room`. False where
    /// the list is full.
    #[must_use]
    pub fn add(&mut self, from: u64, to: u64, bytes: usize, room: usize) -> bool {
        let room = room.max(bytes);
        let mut at = 0;
        while at < room {
            let Some(chunk) = self.chunks.get_mut(self.len) else {
                return false;
            };
            let part = (room - at).min(MOST);
            *chunk = Chunk {
                from: from + at as u64,
                to: to + at as u64,
                bytes: bytes.saturating_sub(at).min(part) as u32,
                room: part as u32,
            };
            self.len += 1;
            at += part;
        }
        true
    }

    /// How many chunks there are.
    pub fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_cover_a_piece_once_and_fit_their_number(
            bytes in 0usize..70_000,
            more in 0usize..40_000,
            before in 0usize..3,
        ) {
            let room = bytes + more;
            let mut memory = vec![Chunk::default(); before + most(1, room)];
            let mut list = List::new(&mut memory);
            for _ in 0..before {
                prop_assert!(list.add(7, 9, 1, 1));
            }
            prop_assert!(list.add(1 << 20, 1 << 30, bytes, room));
            let len = list.len();
            let (mut at, mut copied) = (0u64, 0);
            for c in &memory[before..len] {
                prop_assert_eq!((c.from, c.to), ((1 << 20) + at, (1 << 30) + at));
                prop_assert!(c.bytes <= c.room && c.room as usize <= MOST && c.room > 0);
                // What is copied lies in front of what is cleared.
                prop_assert!(c.bytes == 0 || copied == at);
                copied += u64::from(c.bytes);
                at += u64::from(c.room);
            }
            prop_assert_eq!((copied, at), (bytes as u64, room as u64));
        }
    }

    #[test]
    fn a_full_list_says_so() {
        let mut memory = [Chunk::default(); 2];
        let mut list = List::new(&mut memory);
        assert!(list.add(0, 0, MOST, MOST));
        assert!(!list.add(0, 0, MOST, 2 * MOST));
        assert!(!List::new(&mut []).add(0, 0, 1, 1));
        assert!(List::new(&mut []).add(0, 0, 0, 0), "nothing needs no chunk");
    }
}
