//! Memory of the host that the GPU may read where it lies: the slots samples land in, and the QSL's
//! memory of `--local`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard},
};

use cudarc::driver::sys::{self, CUresult};
use fabric::Region;

use super::Device;

/// Where a byte lies, as far as a GPU cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory of the host that no GPU may read.
    Unregistered,
    /// In memory of the host that GPUs may read where it lies.
    Registered,
    /// In memory of this GPU.
    Gpu(usize),
}

/// Ranges of addresses that GPUs may read. Plain data.
#[derive(Debug, Default)]
pub struct Ranges(BTreeMap<usize, (usize, Place)>);

impl Ranges {
    /// Adds a range that overlaps no other.
    pub fn add(&mut self, base: usize, len: usize, place: Place) {
        self.0.insert(base, (len, place));
    }

    /// Takes it out again.
    pub fn remove(&mut self, base: usize) {
        self.0.remove(&base);
    }

    /// Where the byte at `address` lies, and how many bytes from it on are alike: up to the end of
    /// that range, or up to the next one. A copy may not cross such a border, even where two ranges
    /// lie side by side.
    pub fn at(&self, address: usize) -> (Place, usize) {
        if let Some((base, (size, place))) = self.0.range(..=address).next_back() {
            let end = base.saturating_add(*size);
            if address < end {
                return (*place, end - address);
            }
        }
        let next = self.0.range(address..).next();
        let alike = next.map_or(usize::MAX, |(base, _)| *base) - address;
        (Place::Unregistered, alike)
    }
}

/// What is registered with the driver, for all GPUs: one registration serves them all, and a second
/// one of the same memory would be refused. So there is one list in a process, and every registry
/// is a view of it.
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
    /// Registers a region for as long as it lives. Where the driver refuses (a limit on locked
    /// memory, say), copies from it go through the driver's own staging: slower, and right.
    pub fn register(&self, device: &Arc<Device>, region: &Arc<Region>) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (base, len) = (region.base(), region.len());
        if region.device().is_some() || self.ranges().at(base as usize).0 != Place::Unregistered {
            // A GPU's own; or registered for another GPU's engine.
            return;
        }
        if device.bind().is_err() {
            return;
        }
        // SAFETY: the region's mapping has `len` bytes from `base` on and is unmapped only after
        // `Registration`, which undoes this, is dropped.
        let result = unsafe {
            sys::cuMemHostRegister_v2(
                base.cast(),
                len,
                // For copies to any GPU.
                sys::CU_MEMHOSTREGISTER_PORTABLE,
            )
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
            .add(base as usize, len, Place::Registered);
        region.keep(Box::new(Registration {
            device: device.clone(),
            ranges: self.ranges.clone(),
            base: base as usize,
        }));
    }

    /// Notes for as long as the region lives that it is in the memory of this GPU.
    pub(super) fn on_gpu(&self, device: &Device, region: &Arc<Region>) {
        let (base, len) = (region.base() as usize, region.len());
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        ranges.add(base, len, Place::Gpu(device.index()));
        region.keep(Box::new(Noted {
            ranges: self.ranges.clone(),
            base,
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

/// Forgotten when dropped, before the memory is freed.
struct Noted {
    ranges: Arc<RwLock<Ranges>>,
    base: usize,
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        ranges.remove(self.base);
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
                let place = [Place::Registered, Place::Gpu(3)][i % 2];
                ranges.add(at, *len, place);
                owner[at..at + len].fill(i + 1);
                bases.push((at, *len));
                at += len;
            }
            let (base, gone) = bases[removed.index(bases.len())];
            ranges.remove(base);
            owner[base..base + gone].fill(0);
            let (held, alike) = ranges.at(address);
            let place = match owner[address] {
                0 => Place::Unregistered,
                i if i % 2 == 1 => Place::Registered,
                _ => Place::Gpu(3),
            };
            prop_assert_eq!(held, place);
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
        ranges.add(usize::MAX - 4, 9, Place::Registered);
        assert_eq!(ranges.at(usize::MAX - 1), (Place::Registered, 1));
        assert_eq!(ranges.at(usize::MAX), (Place::Unregistered, 0));
    }
}
