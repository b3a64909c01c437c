//! Registers host memory for GPUs to read in place: slots, and the QSL's memory of `--local`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard},
};

use cudarc::driver::sys::{self, CUresult};
use fabric::Region;

use super::Device;

/// Kind of memory of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Host memory that GPUs cannot read.
    Unregistered,
    /// Host memory that GPUs can read in place.
    Registered,
    /// Memory of this GPU.
    Gpu(usize),
}

/// Address ranges that GPUs can read. Plain data.
#[derive(Debug, Default)]
pub struct Ranges(BTreeMap<usize, (usize, Place)>);

impl Ranges {
    /// Adds a range; it must not overlap another one.
    pub fn add(&mut self, base: usize, len: usize, place: Place) {
        self.0.insert(base, (len, place));
    }

    /// Removes the range that begins at `base`.
    pub fn remove(&mut self, base: usize) {
        self.0.remove(&base);
    }

    /// Kind of memory at `address`, and the number of bytes to the end of that range, or of the gap
    /// before the next range. A copy must not cross such a border, even between adjacent ranges.
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

/// The registrations with the driver. One registration serves all GPUs, and the driver refuses a
/// second one of the same memory. So a process has one list, and every registry is a view of it.
#[derive(Debug)]
pub struct Registry {
    ranges: Arc<RwLock<Ranges>>,
}

/// Serialises registrations: the kernel pins serially, and this keeps each time predictable.
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
    /// Registers a region for its lifetime. If the driver refuses (for example a limit on locked
    /// memory), the driver stages copies from it, which is slower but correct.
    pub fn register(&self, device: &Arc<Device>, region: &Arc<Region>) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (base, len) = (region.base(), region.len());
        if region.device().is_some() || self.ranges().at(base as usize).0 != Place::Unregistered {
            // Memory of a GPU, or already registered for another GPU's engine.
            return;
        }
        if device.bind().is_err() {
            return;
        }
        // SAFETY: the region maps `len` bytes from `base` on, and is unmapped only after
        // `Registration`, whose drop unregisters it.
        let result = unsafe {
            sys::cuMemHostRegister_v2(
                base.cast(),
                len,
                // Valid for copies to any GPU.
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

    /// Records a region in the memory of this GPU, for the lifetime of the region.
    pub(super) fn on_gpu(&self, device: &Device, region: &Arc<Region>) {
        let (base, len) = (region.base() as usize, region.len());
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        ranges.add(base, len, Place::Gpu(device.index()));
        region.keep(Box::new(Noted {
            ranges: self.ranges.clone(),
            base,
        }));
    }

    /// The current ranges. Taken once per batch; regions come and go with connections.
    pub fn ranges(&self) -> RwLockReadGuard<'_, Ranges> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Unregisters on drop, before the region is unmapped.
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
            // SAFETY: `register` registered it once, and it is still mapped.
            unsafe { sys::cuMemHostUnregister(self.base as *mut _) };
        }
    }
}

/// Removes the range on drop, before the memory is freed.
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
        /// Compares with a list of bytes.
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
