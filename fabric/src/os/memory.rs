//! Anonymous memory, and the NUMA nodes it lies on.

use std::{collections::BTreeSet, io, ptr::NonNull};

use super::CpuList;

/// The size of a huge page. Where the machine's are larger, a mapping gets none.
pub const HUGE_PAGE: usize = 2 << 20;

/// The largest node number that [`Mapping::place_on`] can name, plus one.
const MOST_NODES: usize = 1024;

/// Pages that [`Mapping::nodes`] looks at: enough to see a mapping that is split between nodes.
const LOOKED_AT: usize = 256;

/// A private anonymous mapping: page-aligned, zero at first, unmapped when dropped.
///
/// It is an address and a length. What may be read or written when is its owner's to know.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; no method gives access to the bytes behind them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `bytes` zeroes, not set aside: the pages come when they are touched.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(bytes: usize) -> io::Result<Self> {
        Self::map(
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_NORESERVE,
        )
    }

    /// At least `bytes` zeroes in huge pages, which are set aside now, so that touching them never
    /// fails.
    ///
    /// # Errors
    /// There are not as many free (`vm.nr_hugepages`).
    pub fn huge(bytes: usize) -> io::Result<Self> {
        let whole = bytes.checked_next_multiple_of(HUGE_PAGE);
        let whole = whole.ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        Self::map(whole, libc::PROT_READ | libc::PROT_WRITE, flags)
    }

    /// `bytes` of addresses that end a process which touches them.
    ///
    /// # Errors
    /// The kernel's.
    pub fn untouchable(bytes: usize) -> io::Result<Self> {
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
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes that were mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: the kernel maps no nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Pages that are not there yet come from this NUMA node, from several in turns, or, for none,
    /// from the node of the thread that touches them first. A node without room is passed over: far
    /// memory is slow, not wrong.
    ///
    /// # Errors
    /// The kernel has no NUMA, no such node, or lets this process not ask (as in many containers).
    pub fn place_on(&self, nodes: &[u32]) -> io::Result<()> {
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
        // SAFETY: the range is this mapping, whose bytes the call leaves alone; the mask has the
        // bits that the call is told of (it counts one more) and lives through it.
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

    /// Touches every page, so that it exists before it is timed.
    pub fn populate(&self) {
        // SAFETY: the range is this mapping; MADV_POPULATE_WRITE changes no byte. Where the kernel
        // is too old for it (before 5.14) the call fails and pages come at first use instead.
        unsafe {
            libc::madvise(
                self.base.as_ptr().cast(),
                self.len,
                libc::MADV_POPULATE_WRITE,
            );
        }
    }

    /// The nodes that its pages lie on, as the kernel says now, from up to 256 pages all over it.
    /// Empty where no page is there yet, or where the kernel does not say.
    pub fn nodes(&self) -> BTreeSet<u32> {
        const PAGE: usize = 4096;
        let pages = self.len.div_ceil(PAGE).max(1);
        let looked_at = pages.min(LOOKED_AT);
        let at = |i: usize| {
            let page = i * pages / looked_at;
            self.base.as_ptr().wrapping_add(page * PAGE)
        };
        let addresses: Vec<*mut u8> = (0..looked_at).map(at).collect();
        let mut nodes = vec![-1 as libc::c_int; looked_at];
        // SAFETY: both arrays have `looked_at` entries and live through the call, which moves
        // nothing, since it is given no nodes to move to; 0 means this process.
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
        // A page that is not there has an error in place of its node.
        let there = nodes.into_iter().filter_map(|n| u32::try_from(n).ok());
        there.collect()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are what `mmap` gave, and no user is left.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.len);
        }
    }
}

/// NUMA nodes of this machine; one where the kernel has none.
pub fn numa_nodes() -> usize {
    let online = std::fs::read_to_string("/sys/devices/system/node/online");
    let nodes = online.ok().and_then(|text| CpuList::parse(&text).ok());
    nodes.map_or(1, |nodes| nodes.as_slice().len().max(1))
}

/// Bytes that processes can have without swapping, from `/proc/meminfo`.
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
        // Empty where the kernel does not say, as in containers.
        let nodes = mapping.nodes();
        assert!(nodes.len() <= 1024, "{nodes:?}");
        if let Some(node) = nodes.first() {
            let folder = format!("/sys/devices/system/node/node{node}");
            assert!(std::path::Path::new(&folder).exists(), "{folder}");
        }
    }
}
