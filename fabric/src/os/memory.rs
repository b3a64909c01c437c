//! Anonymous memory, and the NUMA nodes it lies on.

use std::{collections::BTreeSet, io, ptr::NonNull};

use super::CpuList;

/// Size of a huge page in bytes. Where the machine's huge pages are larger, mappings have none.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Number of node ids that [`Mapping::place_on`] can name.
const MOST_NODES: usize = 1024;

/// Pages that [`Mapping::nodes`] samples: enough to detect a mapping split between nodes.
const LOOKED_AT: usize = 256;

/// A private anonymous mapping: page-aligned, zero at first, unmapped when dropped.
///
/// The mapping is an address and a length. The owner decides when the bytes may be read or written.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; no method gives access to the bytes behind them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` zeroes without reserving them: a page is allocated when it is touched first.
    ///
    /// # Errors
    /// `mmap` fails.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        Self::map(
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_NORESERVE,
        )
    }

    /// Maps at least `bytes` zeroes in huge pages. The pages are reserved now, so touching them
    /// never fails.
    ///
    /// # Errors
    /// Too few huge pages are free (`vm.nr_hugepages`).
    pub(crate) fn huge(bytes: usize) -> io::Result<Self> {
        let whole = bytes.checked_next_multiple_of(HUGE_PAGE);
        let whole = whole.ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        Self::map(whole, libc::PROT_READ | libc::PROT_WRITE, flags)
    }

    /// Maps `bytes` of addresses without access: touching one ends the process.
    ///
    /// # Errors
    /// `mmap` fails.
    #[cfg(feature = "testkit")]
    pub(crate) fn untouchable(bytes: usize) -> io::Result<Self> {
        Self::map(bytes, libc::PROT_NONE, libc::MAP_NORESERVE)
    }

    fn map(len: usize, access: libc::c_int, flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: an anonymous private mapping at an address of the kernel's choice aliases
        // nothing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                access,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, len })
    }

    /// Address of the first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Mapped bytes.
    #[cfg(feature = "testkit")]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Allocates pages not yet present from this NUMA node, or from several nodes in turns. Without
    /// `nodes`, pages come from the node of the thread that touches them first. A full node is
    /// skipped: remote memory is slower but correct.
    ///
    /// # Errors
    /// The kernel has no NUMA or no such node, or forbids the call (as in many containers).
    pub(crate) fn place_on(&self, nodes: &[u32]) -> io::Result<()> {
        let mut mask = [0u64; MOST_NODES / 64];
        for node in nodes {
            let word = mask.get_mut(*node as usize / 64);
            *word.ok_or(io::ErrorKind::InvalidInput)? |= 1 << (node % 64);
        }
        let mode = match nodes {
            [] => return Ok(()),
            [_] => libc::MPOL_PREFERRED,
            _ => libc::MPOL_INTERLEAVE,
        };
        // SAFETY: the range is this mapping, and the call changes none of its bytes. `mask` lives
        // through the call and has MOST_NODES bits (the kernel expects that number plus 1).
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.len,
                mode,
                mask.as_ptr(),
                MOST_NODES + 1,
                0,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Allocates every page now, so that later measurements contain no page faults.
    pub(crate) fn populate(&self) {
        // SAFETY: the range is this mapping; MADV_POPULATE_WRITE changes no byte. Kernels before
        // 5.14 refuse it; then a page is allocated at first use.
        unsafe {
            libc::madvise(
                self.base.as_ptr().cast(),
                self.len,
                libc::MADV_POPULATE_WRITE,
            );
        }
    }

    /// NUMA nodes of the mapping's pages, from up to 256 pages spread over the mapping. Empty where
    /// no page is present, or where the kernel does not say.
    pub(crate) fn nodes(&self) -> BTreeSet<u32> {
        const PAGE: usize = 4096;
        let pages = self.len.div_ceil(PAGE).max(1);
        let looked_at = pages.min(LOOKED_AT);
        let at = |i: usize| {
            let page = i * pages / looked_at;
            self.base.as_ptr().wrapping_add(page * PAGE)
        };
        let addresses: Vec<*mut u8> = (0..looked_at).map(at).collect();
        let mut nodes = vec![-1 as libc::c_int; looked_at];
        // SAFETY: both arrays have `looked_at` entries and live through the call. Without target
        // nodes the call moves no page; 0 means this process.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                looked_at,
                addresses.as_ptr(),
                std::ptr::null::<libc::c_int>(),
                nodes.as_mut_ptr(),
                0,
            )
        };
        if result != 0 {
            return BTreeSet::new();
        }
        // A page that is not present has a negative error in place of its node.
        let there = nodes.into_iter().filter_map(|n| u32::try_from(n).ok());
        there.collect()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` come from `mmap`; the owner drops it after its last use.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.len);
        }
    }
}

/// Number of NUMA nodes of this machine; 1 where the kernel has no NUMA.
pub fn numa_nodes() -> usize {
    let online = std::fs::read_to_string("/sys/devices/system/node/online");
    let nodes = online.ok().and_then(|text| CpuList::parse(&text).ok());
    nodes.map_or(1, |nodes| nodes.as_slice().len().max(1))
}

/// Bytes available to processes without swapping, from `/proc/meminfo`.
pub fn available_memory() -> Option<u64> {
    parse_available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let line = lines.find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:  8000 kB\nMemAvailable:    4000 kB\n";
        assert_eq!(parse_available(text), Some(4_096_000));
        assert_eq!(parse_available("MemTotal: 1 kB"), None);
        assert!(available_memory().is_some_and(|n| n > 0));
    }

    #[test]
    fn a_node_that_no_kernel_has_is_refused() {
        let mapping = Mapping::new(1 << 16).expect("mapped");
        mapping
            .place_on(&[])
            .expect("nothing to ask the kernel for");
        mapping.place_on(&[1 << 20]).expect_err("beyond the mask");
        mapping.place_on(&[1023]).expect_err("no such node");
    }

    #[test]
    fn pages_that_are_there_lie_somewhere() {
        let mapping = Mapping::new(1 << 20).expect("mapped");
        assert!(mapping.nodes().is_empty(), "none is there yet");
        mapping.populate();
        // `nodes` is empty where the kernel does not say, as in containers.
        let nodes = mapping.nodes();
        assert!(nodes.len() <= 1024, "{nodes:?}");
        if let Some(node) = nodes.first() {
            let folder = format!("/sys/devices/system/node/node{node}");
            assert!(std::path::Path::new(&folder).exists(), "{folder}");
        }
    }
}
