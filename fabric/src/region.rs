//! Memory that fabrics move bytes to and from: reference-counted mappings, addressed by offset.

use std::{
    any::Any, collections::BTreeSet, fmt, io, num::NonZeroUsize, os::fd::OwnedFd, ptr::NonNull,
    sync::Mutex,
};

use crate::os::{HUGE_PAGE, Mapping, lock};

/// One mapping, memory that the caller owns ([`Region::of_host`]), or a range of a device's memory
/// ([`Region::of_device`]). A mapping is page-aligned, zero at first, and unmapped when the last
/// `Arc` is dropped. A mapping of at least 2 MiB uses
/// huge pages where enough are free (`vm.nr_hugepages`), so that a NIC keeps fewer translations.
///
/// The kernel, a NIC or a second thread writes a region while this process holds only the region's
/// address. So no code sees the region as one `&[u8]`. The slot protocol (see the crate's
/// documentation) says who may touch which bytes; [`Region::bytes`] and [`Region::bytes_mut`] mark
/// the code that relies on it.
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    memory: Backing,
    /// Guards that are dropped before the memory.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

enum Backing {
    /// Host memory of this process, unmapped on drop.
    Host {
        mapping: Mapping,
        huge: bool,
    },
    /// Host memory of this owner, dropped with the region.
    Foreign(#[expect(dead_code, reason = "only its drop matters")] Box<dyn Any + Send + Sync>),
    Device(Box<dyn DeviceMemory>),
}

/// A range of a device's memory, behind a [`Region`] ([`Region::of_device`]). The device and the
/// NICs that registered the memory use its addresses; this process must not dereference them.
/// Dropping the value frees the memory.
pub trait DeviceMemory: Send + Sync {
    /// Address of the first byte.
    fn base(&self) -> NonNull<u8>;

    /// Length in bytes, at least 1.
    fn bytes(&self) -> usize;

    /// Name of the device for messages, such as `GPU 0`.
    fn device(&self) -> String;

    /// Copies `bytes` from this process to `offset`, and returns when the copy is complete. The
    /// caller has checked that the range lies inside the memory.
    ///
    /// # Errors
    /// The device refuses the copy; the error is the device's message.
    fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), String>;

    /// Fills `bytes` from `offset` on, as the device sees its memory. The caller has checked the
    /// range.
    ///
    /// # Errors
    /// The device refuses the copy; the error is the device's message.
    fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), String>;

    /// Makes earlier writes by NICs visible to the device. One call per batch suffices.
    ///
    /// # Errors
    /// The fence fails; the error is the device's message.
    fn fence(&self) -> Result<(), String>;

    /// Exports the memory as a dma-buf for a NIC: descriptor, and the first byte's offset in bytes.
    ///
    /// # Errors
    /// The device cannot export the memory; the error says why.
    fn dma_buf(&self) -> Result<(OwnedFd, u64), String>;
}

// SAFETY: a region is an address and a length. Callers of its `unsafe` functions promise exclusive
// or shared access to the bytes, by the slot protocol.
unsafe impl Send for Region {}
// SAFETY: as above: `&Region` alone gives no access to the bytes.
unsafe impl Sync for Region {}

/// Error of mapping a region or of accessing its bytes.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what each error and field is")]
pub enum RegionError {
    #[error("mmap of {len} bytes: {source}; lower `slots` or `memory_mib` in the configuration")]
    Map { len: usize, source: io::Error },
    #[error("bytes {offset}..+{len} lie outside a region of {region} bytes")]
    OutOfBounds {
        offset: usize,
        len: usize,
        region: usize,
    },
    #[error("{device}: {what}")]
    Device { device: String, what: String },
}

impl Region {
    /// Maps `len` bytes of zeroes (at least one page). A page lies on the NUMA node of the thread
    /// that touches it first: call [`Region::prefault`] from a pinned thread.
    ///
    /// # Errors
    /// [`RegionError::Map`].
    pub fn new(len: usize) -> Result<Self, RegionError> {
        Self::on_nodes(len, &[])
    }

    /// Maps `len` bytes with pages on this NUMA node, or on several nodes in turns. Where the
    /// system forbids the placement (as in many containers), a page lies on the node of the thread
    /// that touches it first.
    ///
    /// # Errors
    /// [`RegionError::Map`].
    pub fn on_nodes(len: usize, nodes: &[u32]) -> Result<Self, RegionError> {
        let asked = len.max(1);
        let in_huge = (asked >= HUGE_PAGE).then(|| Mapping::huge(asked).ok());
        let (mapping, huge) = match in_huge.flatten() {
            Some(mapping) => (mapping, true),
            None => {
                let mapping = Mapping::new(asked);
                let mapping = mapping.map_err(|source| RegionError::Map { len, source })?;
                (mapping, false)
            }
        };
        if let Err(e) = mapping.place_on(nodes) {
            tracing::debug!("{asked} bytes cannot be bound to NUMA nodes {nodes:?}: {e}");
        }
        Ok(Region {
            base: mapping.base(),
            len: asked,
            memory: Backing::Host { mapping, huge },
            kept: Mutex::default(),
        })
    }

    /// Wraps host memory of the caller, such as samples that are loaded already. `owner` keeps the
    /// memory; the region drops it after every guard ([`Region::keep`]).
    ///
    /// # Safety
    /// `len` bytes from `base` are mapped, readable and writable, and stay so until `owner` is
    /// dropped. All code that touches the bytes keeps to the slot protocol, as for any region.
    pub unsafe fn of_host(
        base: NonNull<u8>,
        len: NonZeroUsize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Region {
            base,
            len: len.get(),
            memory: Backing::Foreign(owner),
            kept: Mutex::default(),
        }
    }

    /// Wraps memory of a device. [`Region::at`] gives addresses for the device and NICs;
    /// [`Region::bytes`] and [`Region::bytes_mut`] return [`RegionError::Device`].
    pub fn of_device(memory: Box<dyn DeviceMemory>) -> Self {
        Region {
            base: memory.base(),
            len: memory.bytes(),
            memory: Backing::Device(memory),
            kept: Mutex::default(),
        }
    }

    /// The device that owns the memory; `None` for host memory.
    pub fn device(&self) -> Option<&dyn DeviceMemory> {
        match &self.memory {
            Backing::Host { .. } | Backing::Foreign(_) => None,
            Backing::Device(device) => Some(&**device),
        }
    }

    /// Whether the region lies in huge pages.
    pub(crate) fn is_huge(&self) -> bool {
        matches!(self.memory, Backing::Host { huge: true, .. })
    }

    /// NUMA nodes of the region's pages. Empty where no page is present, where the kernel does not
    /// say, and for memory that is not a mapping of this crate. Costs a system call.
    pub fn nodes(&self) -> BTreeSet<u32> {
        match &self.memory {
            Backing::Host { mapping, .. } => mapping.nodes(),
            Backing::Foreign(_) | Backing::Device(_) => BTreeSet::new(),
        }
    }

    /// Length in bytes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "there is always memory")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Keeps `guard`, such as a device's registration of these addresses, while the region lives,
    /// and drops it before the memory is unmapped.
    pub fn keep(&self, guard: Box<dyn Any + Send>) {
        lock(&self.kept).push(guard);
    }

    /// Allocates every page now, on the nodes of [`Region::on_nodes`] or else on this thread's
    /// node. Memory that is not a mapping of this crate is left alone.
    pub fn prefault(&self) {
        if let Backing::Host { mapping, .. } = &self.memory {
            mapping.populate();
        }
    }

    /// Address of `len` bytes at `offset`, which are checked to lie inside the region.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    #[inline]
    pub fn at(&self, offset: usize, len: usize) -> Result<*mut u8, RegionError> {
        match offset.checked_add(len) {
            // No dereference: in a device's memory the address is invalid for this process.
            Some(end) if end <= self.len => Ok(self.base.as_ptr().wrapping_add(offset)),
            _ => Err(self.outside(offset, len)),
        }
    }

    fn outside(&self, offset: usize, len: usize) -> RegionError {
        RegionError::OutOfBounds {
            offset,
            len,
            region: self.len,
        }
    }

    /// Address of host bytes, for the hot path: `None` costs nothing, while an error would allocate
    /// and drop strings.
    #[inline]
    pub(crate) fn reach(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        let here = !matches!(self.memory, Backing::Device(_)) && end <= self.len;
        here.then(|| self.base.as_ptr().wrapping_add(offset))
    }

    /// Address of host bytes.
    fn here(&self, offset: usize, len: usize) -> Result<*mut u8, RegionError> {
        self.reach(offset, len).ok_or_else(|| match self.device() {
            None => self.outside(offset, len),
            Some(_) => self.failed("this process cannot read or write its memory".to_owned()),
        })
    }

    /// Copies bytes into host or device memory. The copy is complete when the call returns.
    ///
    /// # Safety
    /// No other thread and no device reads or writes these bytes during the call.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], or [`RegionError::Device`].
    pub unsafe fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.at(offset, bytes.len())?;
        match self.device() {
            Some(device) => device
                .store(offset, bytes)
                .map_err(|what| self.failed(what)),
            None => {
                // SAFETY: this function's caller promises exclusive access.
                let to = unsafe { self.bytes_mut(offset, bytes.len()) }?;
                to.copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Copies bytes out of host or device memory.
    ///
    /// # Safety
    /// No thread and no device writes these bytes during the call.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], or [`RegionError::Device`].
    pub unsafe fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), RegionError> {
        self.at(offset, bytes.len())?;
        match self.device() {
            Some(device) => device.load(offset, bytes).map_err(|what| self.failed(what)),
            None => {
                // SAFETY: this function's caller promises that the bytes do not change.
                let from = unsafe { self.bytes(offset, bytes.len()) }?;
                bytes.copy_from_slice(from);
                Ok(())
            }
        }
    }

    fn failed(&self, what: String) -> RegionError {
        let device = self.device().map(|d| d.device());
        RegionError::Device {
            device: device.unwrap_or_default(),
            what,
        }
    }

    /// Borrows bytes of host memory.
    ///
    /// # Safety
    /// No thread and no device writes these bytes while the slice lives.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], [`RegionError::Device`].
    #[inline]
    pub unsafe fn bytes(&self, offset: usize, len: usize) -> Result<&[u8], RegionError> {
        let at = self.here(offset, len)?;
        // SAFETY: `here` checked the bounds, the mapping lives as long as `self`, and the caller
        // promises that the bytes do not change.
        Ok(unsafe { std::slice::from_raw_parts(at, len) })
    }

    /// Borrows bytes of host memory for writing.
    ///
    /// # Safety
    /// No other thread and no device reads or writes these bytes while the slice lives.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], [`RegionError::Device`].
    #[allow(
        clippy::mut_from_ref,
        reason = "the caller promises exclusive access to these bytes"
    )]
    #[inline]
    pub unsafe fn bytes_mut(&self, offset: usize, len: usize) -> Result<&mut [u8], RegionError> {
        let at = self.here(offset, len)?;
        // SAFETY: as in `bytes`, and the caller promises exclusive access.
        Ok(unsafe { std::slice::from_raw_parts_mut(at, len) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        lock(&self.kept).clear();
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.device() {
            Some(device) => format!(" of {}", device.device()),
            None if self.is_huge() => " in huge pages".to_owned(),
            None => String::new(),
        };
        write!(f, "Region({} bytes{place})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_checked() {
        let r = Region::new(100).expect("mapped");
        assert!(r.at(0, 100).is_ok());
        assert!(r.at(100, 0).is_ok());
        assert!(r.at(1, 100).is_err());
        assert!(r.at(usize::MAX, 2).is_err());
    }

    /// Free huge pages of the machine that no process has reserved.
    fn free_huge_pages() -> usize {
        let meminfo = std::fs::read_to_string("/proc/meminfo").expect("Linux");
        let value = |key: &str| -> usize {
            let line = meminfo.lines().find_map(|l| l.strip_prefix(key));
            line.and_then(|l| l.split_whitespace().next()?.parse().ok())
                .unwrap_or(0)
        };
        value("HugePages_Free:").saturating_sub(value("HugePages_Rsvd:"))
    }

    #[test]
    fn a_large_region_is_whole_with_and_without_huge_pages() {
        let plenty = free_huge_pages() >= 64;
        let r = Region::new(HUGE_PAGE + 5).expect("mapped");
        assert_eq!(r.len(), HUGE_PAGE + 5);
        assert!(
            r.at(HUGE_PAGE + 5, 1).is_err(),
            "the rounding is not part of it"
        );
        // SAFETY: only this test uses the region.
        let bytes = unsafe { r.bytes_mut(0, r.len()) }.expect("all of it");
        assert!(bytes.iter().all(|b| *b == 0));
        bytes.fill(7);
        assert!(r.is_huge() || !plenty, "huge pages are free and unused");
        assert!(!Region::new(HUGE_PAGE - 1).expect("mapped").is_huge());
    }

    #[test]
    fn what_is_kept_goes_with_the_region() {
        let guard = std::sync::Arc::new(());
        let r = Region::new(1).expect("mapped");
        r.keep(Box::new(guard.clone()));
        assert_eq!(std::sync::Arc::strong_count(&guard), 2);
        drop(r);
        assert_eq!(std::sync::Arc::strong_count(&guard), 1);
    }

    #[test]
    fn memory_of_the_caller_is_used_in_place_and_goes_last() {
        let owner = std::sync::Arc::new(Mutex::new([7u8; 16]));
        let base = owner.lock().expect("no panic").as_mut_ptr();
        let base = NonNull::new(base).expect("an array");
        let len = NonZeroUsize::new(16).expect("16");
        // SAFETY: the array lives in `owner`, and nothing else touches it.
        let r = unsafe { Region::of_host(base, len, Box::new(owner.clone())) };
        assert!(r.at(9, 8).is_err());
        // SAFETY: only this test uses the region.
        unsafe { r.store(4, b"data") }.expect("inside");
        r.prefault();
        assert_eq!(&owner.lock().expect("no panic")[2..9], b"\x07\x07data\x07");
        drop(r);
        assert_eq!(std::sync::Arc::strong_count(&owner), 1);
    }

    #[test]
    fn a_region_no_machine_has_is_refused() {
        assert!(matches!(
            Region::new(usize::MAX / 2),
            Err(RegionError::Map { .. })
        ));
    }
}
