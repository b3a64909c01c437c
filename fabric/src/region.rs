//! Memory that fabrics move bytes to and from: anonymous mappings that live until the last user is
//! gone, addressed by offset.

use std::{
    any::Any,
    collections::BTreeSet,
    fmt, io,
    ptr::NonNull,
    sync::{Mutex, PoisonError},
};

use super::DeviceMemory;
use crate::os::{HUGE_PAGE, Mapping};

/// One mapping, or a piece of a device's memory ([`Region::of_device`]). A mapping is page-aligned,
/// zero at first, and unmapped when the last `Arc` is dropped. One of at least 2 MiB lies in huge
/// pages where the machine has enough of them free (`vm.nr_hugepages`): a NIC then keeps fewer
/// translations.
///
/// A region is written by the kernel, a NIC or another thread while this process
/// holds only its address, so it is never seen as one `&[u8]`: the slot protocol
/// (see the module above) says who may touch which bytes when, and [`Region::bytes`]
/// and [`Region::bytes_mut`] are where code that relies on the protocol says so.
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    memory: Behind,
    /// What must be let go of before the mapping is.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

/// Whose bytes they are.
enum Behind {
    /// This process's, to be unmapped.
    Host { mapping: Mapping, huge: bool },
    /// A device's.
    Device(Box<dyn DeviceMemory>),
}

// SAFETY: a region is an address and a length; the bytes behind it are reached through `unsafe`
// functions whose callers promise exclusive or shared access by the slot protocol.
unsafe impl Send for Region {}
// SAFETY: as above: `&Region` alone gives no access to the bytes.
unsafe impl Sync for Region {}

/// A region that could not be had, or bytes outside one.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The kernel refused the mapping.
    #[error("mmap of {len} bytes: {source}; lower `slots` or `memory_mib` in the configuration")]
    Map {
        /// Bytes asked for.
        len: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// An offset and length that do not lie inside.
    #[error("bytes {offset}..+{len} lie outside a region of {region} bytes")]
    OutOfBounds {
        /// First byte.
        offset: usize,
        /// How many.
        len: usize,
        /// Bytes in the region.
        region: usize,
    },
    /// Memory that this process may not touch.
    #[error("bytes in the memory of {device} cannot be read or written from here")]
    OnDevice {
        /// Whose memory it is.
        device: String,
    },
    /// A device that failed to copy.
    #[error("{device}: {what}")]
    Device {
        /// Whose memory it is.
        device: String,
        /// Its own words.
        what: String,
    },
}

impl Region {
    /// Maps `len` bytes of zeroes (at least one page). Pages are placed on the NUMA node of the
    /// thread that first touches them: call [`Region::prefault`] from a pinned thread.
    ///
    /// # Errors
    /// [`RegionError::Map`].
    pub fn new(len: usize) -> Result<Self, RegionError> {
        Self::on_nodes(len, &[])
    }

    /// The same, with pages on this NUMA node, or on several in turns. Where the system refuses
    /// that (as in many containers), they come to lie near the thread that touches them first, as
    /// without a node.
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
            memory: Behind::Host { mapping, huge },
            kept: Mutex::default(),
        })
    }

    /// Memory of a device. [`Region::at`] gives its addresses, for the device and for NICs;
    /// [`Region::bytes`] and [`Region::bytes_mut`] give nothing.
    pub fn of_device(memory: Box<dyn DeviceMemory>) -> Self {
        Region {
            base: memory.base(),
            len: memory.bytes(),
            memory: Behind::Device(memory),
            kept: Mutex::default(),
        }
    }

    /// Whose memory it is, where it is a device's.
    pub fn device(&self) -> Option<&dyn DeviceMemory> {
        match &self.memory {
            Behind::Host { .. } => None,
            Behind::Device(device) => Some(&**device),
        }
    }

    /// True where it lies in huge pages.
    pub fn is_huge(&self) -> bool {
        matches!(self.memory, Behind::Host { huge: true, .. })
    }

    /// The NUMA nodes that its pages lie on; empty where none is there yet, where the kernel does
    /// not say, and for a device's memory. Costs a system call.
    pub fn nodes(&self) -> BTreeSet<u32> {
        match &self.memory {
            Behind::Host { mapping, .. } => mapping.nodes(),
            Behind::Device(_) => BTreeSet::new(),
        }
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: the smallest region has one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Keeps `guard` for as long as the region lives and drops it before the memory is unmapped: a
    /// device's registration of these addresses, say.
    pub fn keep(&self, guard: Box<dyn Any + Send>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(guard);
    }

    /// Touches every page, so that it exists before it is timed: on the nodes that it was placed
    /// on, or else on this thread's.
    pub fn prefault(&self) {
        if let Behind::Host { mapping, .. } = &self.memory {
            mapping.populate();
        }
    }

    /// Address of `len` bytes at `offset`, checked to lie inside.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    pub fn at(&self, offset: usize, len: usize) -> Result<*mut u8, RegionError> {
        match offset.checked_add(len) {
            // Without following it: where it is a device's, it is no address of ours.
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

    /// The same of bytes that this process may follow, for the hot path, where it matters to nobody
    /// why there are none: an error would have strings to be dropped.
    pub(crate) fn reach(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        let here = matches!(self.memory, Behind::Host { .. }) && end <= self.len;
        here.then(|| self.base.as_ptr().wrapping_add(offset))
    }

    /// The address of bytes that this process may follow.
    fn here(&self, offset: usize, len: usize) -> Result<*mut u8, RegionError> {
        self.reach(offset, len).ok_or_else(|| match self.device() {
            None => self.outside(offset, len),
            Some(device) => RegionError::OnDevice {
                device: device.device(),
            },
        })
    }

    /// Copies bytes into it, wherever it is. They are there when this returns.
    ///
    /// # Safety
    /// Nobody else reads or writes these bytes meanwhile.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], or the device's.
    pub unsafe fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.at(offset, bytes.len())?;
        match self.device() {
            Some(device) => device
                .store(offset, bytes)
                .map_err(|what| self.failed(what)),
            None => {
                // SAFETY: the caller's promise.
                let to = unsafe { self.bytes_mut(offset, bytes.len()) }?;
                to.copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Copies bytes out of it, wherever it is.
    ///
    /// # Safety
    /// Nobody writes these bytes meanwhile.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], or the device's.
    pub unsafe fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), RegionError> {
        self.at(offset, bytes.len())?;
        match self.device() {
            Some(device) => device.load(offset, bytes).map_err(|what| self.failed(what)),
            None => {
                // SAFETY: the caller's promise.
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

    /// Reads bytes in place.
    ///
    /// # Safety
    /// Nobody writes these bytes while the slice lives.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], [`RegionError::OnDevice`].
    pub unsafe fn bytes(&self, offset: usize, len: usize) -> Result<&[u8], RegionError> {
        let at = self.here(offset, len)?;
        // SAFETY: `at` checked the bounds, the mapping lives as long as `self`, and the caller
        // promises that the bytes stay as they are.
        Ok(unsafe { std::slice::from_raw_parts(at, len) })
    }

    /// Writes bytes in place.
    ///
    /// # Safety
    /// Nobody else reads or writes these bytes while the slice lives.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], [`RegionError::OnDevice`].
    #[allow(
        clippy::mut_from_ref,
        reason = "the caller promises exclusive access to these bytes"
    )]
    pub unsafe fn bytes_mut(&self, offset: usize, len: usize) -> Result<&mut [u8], RegionError> {
        let at = self.here(offset, len)?;
        // SAFETY: as in `bytes`, and the caller promises exclusive access.
        Ok(unsafe { std::slice::from_raw_parts_mut(at, len) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
        kept.clear();
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

    /// The machine's huge pages that nobody has or has been promised.
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
        // SAFETY: nobody else has the region.
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
    fn a_region_no_machine_has_is_refused() {
        assert!(matches!(
            Region::new(usize::MAX / 2),
            Err(RegionError::Map { .. })
        ));
    }
}
