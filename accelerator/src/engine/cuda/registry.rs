//! Memory of the host that the GPU may read where it lies: the slots samples land in, and the QSL's memory of `--local`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard},
};

use cudarc::driver::sys::{self, CUresult};
use qdl::fabric::Region;

use super::Device;

/// Ranges of addresses that are registered. Plain data.
#[derive(Debug, Default)]
pub struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    /// Adds a range that overlaps no other.
    pub fn add(&mut self, base: usize, len: usize) {
        self.0.insert(base, len);
    }

    /// Takes it out again.
    pub fn remove(&mut self, base: usize) {
        self.0.remove(&base);
    }

    /// Whether the byte at `address` is in a range, and how many bytes from it on are alike: up to the end of that range, or
    /// up to the next one. A copy may not cross such a border, even where two ranges lie side by side.
    pub fn at(&self, address: usize) -> (bool, usize) {
        if let Some((base, size)) = self.0.range(..=address).next_back() {
            let end = base.saturating_add(*size);
            if address < end {
                return (true, end - address);
            }
        }
        match self.0.range(address..).next() {
            Some((base, _)) => (false, base - address),
            None => (false, usize::MAX - address),
        }
    }
}

/// What is registered with the driver, for all GPUs: one registration serves them all, and a second one of the same memory
/// would be refused. So there is one list in a process, and every registry is a view of it.
#[derive(Debug)]
pub struct Registry {
    ranges: Arc<RwLock<Ranges>>,
}

/// Pinning is slow and serial in the kernel; one at a time keeps its time predictable.
static TURN: Mutex<()> = Mutex::new(());

impl Default for Registry {
    fn default() -> Self {
        static ALL: OnceLock<Arc<RwLock<Ranges>>> = OnceLock::new();
        Registry {
            ranges: ALL.get_or_init(Arc::default).clone(),
        }
    }
}

impl Registry {
    /// Registers a region for as long as it lives. Where the driver refuses (a limit on locked memory, say), copies from
    /// it go through the driver's own staging: slower, and right.
    pub fn register(&self, device: &Arc<Device>, region: &Arc<Region>) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (base, len) = (region.base(), region.len());
        if self.ranges().at(base as usize).0 {
            // For another GPU's engine.
            return;
        }
        if device.bind().is_err() {
            return;
        }
        // SAFETY: the region's mapping has `len` bytes from `base` on and is unmapped only after `Registration`, which
        // undoes this, is dropped.
        let result = unsafe {
            sys::cuMemHostRegister_v2(base.cast(), len, sys::CU_MEMHOSTREGISTER_PORTABLE)
        };
        if result != CUresult::CUDA_SUCCESS {
            tracing::warn!(
                "GPU {}: {} MiB of slots cannot be registered ({result:?}); copies from them are staged by the driver",
                device.index(),
                len >> 20
            );
            return;
        }
        self.ranges
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .add(base as usize, len);
        region.keep(Box::new(Registration {
            device: device.clone(),
            ranges: self.ranges.clone(),
            base: base as usize,
        }));
    }

    /// The ranges as they are now. Taken once a batch; regions come and go with connections.
    pub fn ranges(&self) -> RwLockReadGuard<'_, Ranges> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Undone when dropped, before the region is unmapped.
struct Registration {
    device: Arc<Device>,
    ranges: Arc<RwLock<Ranges>>,
    base: usize,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.ranges
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(self.base);
        if self.device.bind().is_ok() {
            // SAFETY: registered by `register`, once, and still mapped.
            unsafe { sys::cuMemHostUnregister(self.base as *mut _) };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a list of bytes.
        #[test]
        fn borders_are_where_ranges_begin_and_end(
            lens in prop::collection::vec((1usize..9, 0usize..4), 1..6),
            removed in any::<prop::sample::Index>(),
            address in 0usize..60,
        ) {
            let (mut ranges, mut at, mut owner) = (Ranges::default(), 5, vec![0; 200]);
            let mut bases = Vec::new();
            for (i, (len, gap)) in lens.iter().enumerate() {
                at += gap;
                ranges.add(at, *len);
                owner[at..at + len].fill(i + 1);
                bases.push((at, *len));
                at += len;
            }
            let (base, gone) = bases[removed.index(bases.len())];
            ranges.remove(base);
            owner[base..base + gone].fill(0);
            let (held, alike) = ranges.at(address);
            prop_assert_eq!(held, owner[address] != 0);
            let same = owner[address..].iter().take_while(|o| **o == owner[address]).count();
            if address + same < owner.len() {
                prop_assert_eq!(alike, same);
            } else {
                prop_assert!(alike >= same);
            }
        }
    }

    #[test]
    fn the_end_of_memory_is_no_overflow() {
        let mut ranges = Ranges::default();
        ranges.add(usize::MAX - 4, 9);
        assert_eq!(ranges.at(usize::MAX - 1), (true, 1));
        assert_eq!(ranges.at(usize::MAX), (false, 0));
    }
}
