//! Memory of the prompts in flight: one region, registered with the NICs. A prompt lies there from
//! its request to its answer, so that the dispatcher can send it again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use fabric::{Region, RegionError, os::lock};

/// Prompts begin at multiples of a cache line.
const LINE: usize = 64;

/// The region, and which of its bytes are free.
#[derive(Debug)]
pub struct Prompts {
    region: Arc<Region>,
    free: Mutex<FreeRanges>,
}

/// A prompt's bytes, free again once this value is dropped.
#[derive(Debug)]
pub struct PromptRoom {
    of: Arc<Prompts>,
    /// Offset in the region, in bytes.
    pub offset: usize,
    /// Length of the prompt with its options, in bytes.
    pub len: u32,
}

impl Prompts {
    /// Maps memory for `bytes` of prompts.
    ///
    /// # Errors
    /// The system has no memory left.
    pub fn new(bytes: usize) -> Result<Self, RegionError> {
        Ok(Prompts {
            region: Arc::new(Region::new(bytes)?),
            free: Mutex::new(FreeRanges::new(bytes / LINE * LINE)),
        })
    }

    /// The region, the source of all samples.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Stores a prompt behind its block of options. `None`: no room is left for it.
    pub fn store(self: &Arc<Self>, options: &[u8], ids: &[i32]) -> Option<PromptRoom> {
        let len = options.len() + size_of_val(ids);
        let room = PromptRoom {
            offset: lock(&self.free).take(reserved(len))?,
            of: self.clone(),
            len: u32::try_from(len).ok()?,
        };
        // SAFETY: these bytes were free, so no sample sends them; `room` keeps them from others.
        let to = unsafe { self.region.bytes_mut(room.offset, len) }.ok()?;
        let (block, payload) = to.split_at_mut(options.len());
        block.copy_from_slice(options);
        for (to, id) in payload.chunks_exact_mut(size_of::<i32>()).zip(ids) {
            to.copy_from_slice(&id.to_le_bytes());
        }
        Some(room)
    }
}

impl Drop for PromptRoom {
    fn drop(&mut self) {
        lock(&self.of.free).give(self.offset, reserved(self.len as usize));
    }
}

fn reserved(len: usize) -> usize {
    len.next_multiple_of(LINE).max(LINE)
}

/// Free ranges of a region, by offset and by length. The shortest that fits is taken.
#[derive(Debug)]
struct FreeRanges {
    by_offset: BTreeMap<usize, usize>,
    by_len: BTreeSet<(usize, usize)>,
}

impl FreeRanges {
    fn new(bytes: usize) -> Self {
        let mut free = FreeRanges {
            by_offset: BTreeMap::new(),
            by_len: BTreeSet::new(),
        };
        free.add(0, bytes);
        free
    }

    fn add(&mut self, offset: usize, len: usize) {
        self.by_offset.insert(offset, len);
        self.by_len.insert((len, offset));
    }

    fn remove(&mut self, offset: usize, len: usize) {
        self.by_offset.remove(&offset);
        self.by_len.remove(&(len, offset));
    }

    fn take(&mut self, len: usize) -> Option<usize> {
        let (whole, offset) = *self.by_len.range((len, 0)..).next()?;
        self.remove(offset, whole);
        if whole > len {
            self.add(offset + len, whole - len);
        }
        Some(offset)
    }

    fn give(&mut self, mut offset: usize, mut len: usize) {
        let before = self.by_offset.range(..offset).next_back();
        if let Some((from, own)) = before.map(|(from, own)| (*from, *own))
            && from + own == offset
        {
            self.remove(from, own);
            (offset, len) = (from, own + len);
        }
        if let Some(own) = self.by_offset.get(&(offset + len)).copied() {
            self.remove(offset + len, own);
            len += own;
        }
        self.add(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn prompts_in_flight_share_no_byte_and_all_memory_comes_back(
            sizes in prop::collection::vec((0usize..200, any::<bool>()), 1..200),
        ) {
            let prompts = Arc::new(Prompts::new(16 << 10).expect("memory"));
            let mut kept: Vec<(PromptRoom, i32)> = Vec::new();
            for (n, (ids, drops)) in (0..).zip(sizes) {
                if drops && !kept.is_empty() {
                    kept.swap_remove(ids % kept.len());
                }
                if let Some(room) = prompts.store(&[7; 8], &vec![n; ids]) {
                    kept.push((room, n));
                }
                for (room, n) in &kept {
                    // SAFETY: no thread writes now.
                    let bytes = unsafe { prompts.region.bytes(room.offset, room.len as usize) };
                    let (options, ids) = bytes.expect("inside").split_at(8);
                    prop_assert_eq!(options, &[7; 8]);
                    prop_assert!(ids.chunks(4).all(|id| id == n.to_le_bytes()));
                }
            }
            drop(kept);
            prop_assert_eq!(&lock(&prompts.free).by_len, &BTreeSet::from([(16 << 10, 0)]));
        }
    }

    #[test]
    fn a_prompt_beyond_the_memory_gets_no_room() {
        let prompts = Arc::new(Prompts::new(1 << 10).expect("memory"));
        assert!(prompts.store(&[], &[0; 257]).is_none());
        let whole = prompts.store(&[], &[0; 256]).expect("all of it");
        assert!(prompts.store(&[], &[0]).is_none());
        drop(whole);
        assert!(prompts.store(&[], &[0]).is_some());
    }
}
