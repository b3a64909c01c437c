//! Registers host memory so that GPUs can read it in place: slots, and QSL memory in `--local`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use cudarc::driver::sys::{self, CUresult};
use fabric::Region;

use super::Device;
use fabric::os::lock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryKind {
    /// Host memory that GPUs cannot read: the driver stages copies.
    Unregistered,
    /// Host memory that GPUs can read in place.
    Registered,
    Gpu(usize),
}

/// Address ranges that GPUs can read. Plain data.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<usize, (usize, MemoryKind)>);

impl Ranges {
    /// Adds a range, which must not overlap another range.
    pub fn add(&mut self, base: usize, len: usize, kind: MemoryKind) {
        self.0.insert(base, (len, kind));
    }

    /// Removes the range that begins at `base`.
    pub fn remove(&mut self, base: usize) {
        self.0.remove(&base);
    }

    /// Kind of memory at `address`, and the bytes from there to the end of the range, or of the gap
    /// before the next range. A copy must not cross this end, even into an adjacent range.
    pub fn at(&self, address: usize) -> (MemoryKind, usize) {
        if let Some((base, (size, kind))) = self.0.range(..=address).next_back() {
            let end = base.saturating_add(*size);
            if address < end {
                return (*kind, end - address);
            }
        }
        let next = self.0.range(address..).next();
        let alike = next.map_or(usize::MAX, |(base, _)| *base) - address;
        (MemoryKind::Unregistered, alike)
    }
}

/// The memory that GPUs can read in this process. One registration serves all GPUs; the driver
/// refuses a second registration of the same memory.
static RANGES: RwLock<Ranges> = RwLock::new(Ranges(BTreeMap::new()));

/// Serialises registrations. The kernel pins serially anyway; the lock makes times predictable.
static TURN: Mutex<()> = Mutex::new(());

/// Registers a region for its lifetime. If the driver refuses (for example at a limit on locked
/// memory), copies from the region are staged: slower, but correct.
pub(super) fn register(device: &Arc<Device>, region: &Arc<Region>) {
    let _turn = lock(&TURN);
    let (base, len) = (region.base(), region.len());
    if region.device().is_some() || ranges().at(base as usize).0 != MemoryKind::Unregistered {
        // The region is in a GPU's memory, or registered for another GPU's engine.
        return;
    }
    if device.bind().is_err() {
        return;
    }
    // SAFETY: the region maps `len` bytes from `base` on, and is unmapped only after
    // `Registration`, whose drop unregisters it.
    let result = unsafe {
        // `PORTABLE`: the registration is valid for copies to any GPU.
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
        sys::cuMemHostRegister_v2(base.cast(), len, flags)
    };
    if result != CUresult::CUDA_SUCCESS {
        tracing::warn!(
            "GPU {}: {} MiB of slots cannot be registered ({result:?}); copies from them are \
             staged by the driver",
            device.index,
            len >> 20
        );
        return;
    }
    note(region, MemoryKind::Registered, Some(device.clone()));
}

/// Adds a region in the memory of `device` to the ranges, for the lifetime of the region.
pub(super) fn on_gpu(device: &Device, region: &Arc<Region>) {
    note(region, MemoryKind::Gpu(device.index), None);
}

fn note(region: &Arc<Region>, kind: MemoryKind, registered: Option<Arc<Device>>) {
    let base = region.base() as usize;
    ranges_mut().add(base, region.len(), kind);
    region.keep(Box::new(Registration { registered, base }));
}

/// Locks the ranges for reading, once per batch: regions come and go with connections.
pub(super) fn ranges() -> RwLockReadGuard<'static, Ranges> {
    RANGES.read().unwrap_or_else(PoisonError::into_inner)
}

fn ranges_mut() -> RwLockWriteGuard<'static, Ranges> {
    RANGES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Guard of a range: its drop removes the range before the memory is unmapped or freed.
struct Registration {
    /// The GPU that registered the memory with the driver.
    registered: Option<Arc<Device>>,
    base: usize,
}

impl Drop for Registration {
    fn drop(&mut self) {
        ranges_mut().remove(self.base);
        if let Some(device) = &self.registered
            && device.bind().is_ok()
        {
            // SAFETY: `register` registered it once, and it is still mapped.
            unsafe { sys::cuMemHostUnregister(self.base as *mut _) };
        }
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
                let kind = [MemoryKind::Registered, MemoryKind::Gpu(3)][i % 2];
                ranges.add(at, *len, kind);
                owner[at..at + len].fill(i + 1);
                bases.push((at, *len));
                at += len;
            }
            let (base, gone) = bases[removed.index(bases.len())];
            ranges.remove(base);
            owner[base..base + gone].fill(0);
            let (held, alike) = ranges.at(address);
            let kind = match owner[address] {
                0 => MemoryKind::Unregistered,
                i if i % 2 == 1 => MemoryKind::Registered,
                _ => MemoryKind::Gpu(3),
            };
            prop_assert_eq!(held, kind);
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
        ranges.add(usize::MAX - 4, 9, MemoryKind::Registered);
        assert_eq!(ranges.at(usize::MAX - 1), (MemoryKind::Registered, 1));
        assert_eq!(ranges.at(usize::MAX), (MemoryKind::Unregistered, 0));
    }
}
