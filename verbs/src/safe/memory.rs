//! Memory that can be registered.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use crate::Error;

/// Owns a range of memory that a NIC may read and write at any time while it is registered.
///
/// # Safety
///
/// For as long as the value lives, `addr()..addr() + len()` is mapped at that address, readable and (unless it is registered
/// without any write access) writable. No Rust reference to a byte of it exists while a NIC may write that byte: the
/// owner hands out raw pointers, and those who follow them know from the protocol above who owns which byte when.
pub unsafe trait Memory: Send + Sync + 'static {
    /// The first byte.
    fn addr(&self) -> NonNull<u8>;
    /// How many bytes.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A mapping of its own: page-aligned, zeroed, unmapped on drop. Pages appear on the NUMA node of the thread that first
/// touches (or registers) them.
pub struct HostMemory {
    addr: NonNull<u8>,
    /// What was asked for.
    len: usize,
    /// What is mapped: `len` rounded up to whole pages.
    mapped: usize,
    huge: bool,
    file: Option<OwnedFd>,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for HostMemory {}
// SAFETY: `&HostMemory` gives nothing but the address and the length; following the address is the caller's `unsafe`.
unsafe impl Sync for HostMemory {}

// SAFETY: the range is mapped for reading and writing from `map` until `drop`, and no reference to it is ever made here.
unsafe impl Memory for HostMemory {
    fn addr(&self) -> NonNull<u8> {
        self.addr
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// The size of a huge page on the machines this runs on.
const HUGE_PAGE: usize = 2 << 20;

impl HostMemory {
    /// Maps `len` bytes that belong to this process alone.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] for no bytes, [`Error::System`] when the kernel has not that much.
    pub fn anonymous(len: usize) -> Result<Self, Error> {
        Self::map(
            len,
            4096,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            None,
            || format!("mapping {len} bytes"),
        )
    }

    /// As [`HostMemory::anonymous`], on reserved huge pages when there are enough, otherwise on ordinary pages with
    /// the request that the kernel merge them. [`HostMemory::is_huge`] says which.
    ///
    /// # Errors
    ///
    /// As [`HostMemory::anonymous`].
    pub fn huge(len: usize) -> Result<Self, Error> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        if let Ok(mut memory) =
            Self::map(len, HUGE_PAGE, flags | libc::MAP_HUGETLB, None, String::new)
        {
            memory.huge = true;
            return Ok(memory);
        }
        let memory = Self::anonymous(len)?;
        // SAFETY: the range is this mapping's; the advice changes no contents, and its refusal changes nothing.
        unsafe {
            libc::madvise(
                memory.addr.as_ptr().cast(),
                memory.mapped,
                libc::MADV_HUGEPAGE,
            )
        };
        Ok(memory)
    }

    /// Maps `len` bytes of a new memfd, which other processes can map too when they are given its descriptor.
    ///
    /// # Errors
    ///
    /// As [`HostMemory::anonymous`].
    pub fn memfd(name: &CStr, len: usize) -> Result<Self, Error> {
        let doing = || format!("making a memfd of {len} bytes");
        // SAFETY: the name is a NUL-terminated string.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(Error::system("memfd_create", doing));
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(len as u64).map_err(|source| Error::System {
            call: "ftruncate",
            source,
            doing: doing(),
        })?;
        Self::map(len, 4096, libc::MAP_SHARED, Some(file.into()), doing)
    }

    /// Maps `len` bytes of a descriptor that another process made with [`HostMemory::memfd`].
    ///
    /// # Errors
    ///
    /// As [`HostMemory::anonymous`].
    pub fn from_fd(file: OwnedFd, len: usize) -> Result<Self, Error> {
        Self::map(len, 4096, libc::MAP_SHARED, Some(file), || {
            format!("mapping {len} bytes of a peer's memfd")
        })
    }

    fn map(
        len: usize,
        page: usize,
        flags: i32,
        file: Option<OwnedFd>,
        doing: impl FnOnce() -> String,
    ) -> Result<Self, Error> {
        let mapped = len
            .checked_next_multiple_of(page)
            .filter(|&mapped| mapped > 0);
        let Some(mapped) = mapped else {
            return Err(Error::Value {
                field: "length",
                value: len as u64,
                allowed: "at least one byte, and addressable",
            });
        };
        let fd = file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        // SAFETY: a new mapping at an address of the kernel's choosing touches nothing that exists.
        let addr = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                fd,
                0,
            )
        };
        if addr == libc::MAP_FAILED {
            return Err(Error::system("mmap", doing));
        }
        let Some(addr) = NonNull::new(addr.cast()) else {
            return Err(Error::system("mmap", doing));
        };
        Ok(Self {
            addr,
            len,
            mapped,
            huge: false,
            file,
        })
    }

    /// Whether it lies on reserved huge pages.
    #[must_use]
    pub fn is_huge(&self) -> bool {
        self.huge
    }

    /// The descriptor behind it, when it is a memfd.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRegion`] when they do not fit.
    ///
    /// # Safety
    ///
    /// Until it returns, no other thread and no peer reads or writes these bytes.
    pub unsafe fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.check(offset, bytes.len())?;
        // SAFETY: in range, as just checked; nobody else touches the bytes, as the caller promises; `bytes` is no part of
        // the mapping, since no reference to it exists.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.addr.as_ptr().add(offset), bytes.len())
        };
        Ok(())
    }

    /// Copies the bytes at `offset` to `bytes`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRegion`] when there are not so many.
    ///
    /// # Safety
    ///
    /// Until it returns, no other thread and no peer writes these bytes.
    pub unsafe fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.check(offset, bytes.len())?;
        // SAFETY: as in `copy_in`.
        unsafe {
            ptr::copy_nonoverlapping(
                self.addr.as_ptr().add(offset),
                bytes.as_mut_ptr(),
                bytes.len(),
            )
        };
        Ok(())
    }

    fn check(&self, offset: usize, asked: usize) -> Result<(), Error> {
        match offset.checked_add(asked) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::OutOfRegion {
                offset,
                asked,
                length: self.len,
            }),
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping, unmapped once; who registered it holds an `Arc` of it and is gone.
        unsafe { libc::munmap(self.addr.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_and_the_edges_hold() {
        for memory in [
            HostMemory::anonymous(5000),
            HostMemory::memfd(c"qdl-test", 5000),
            HostMemory::huge(5000),
        ] {
            let memory = memory.expect("five thousand bytes");
            let mut out = [9; 4];
            // SAFETY: this thread alone knows the memory.
            unsafe {
                memory.copy_in(4996, b"last").expect("within");
                memory.copy_out(4996, &mut out).expect("within");
                assert_eq!(&out, b"last");
                assert!(matches!(
                    memory.copy_in(4997, b"last"),
                    Err(Error::OutOfRegion { length: 5000, .. })
                ));
                assert!(memory.copy_out(usize::MAX, &mut out).is_err());
            }
        }
    }

    #[test]
    fn a_memfd_is_seen_through_its_descriptor() {
        let one = HostMemory::memfd(c"qdl-test", 64).expect("a memfd");
        let fd = one
            .fd()
            .expect("its descriptor")
            .try_clone_to_owned()
            .expect("a copy of it");
        let two = HostMemory::from_fd(fd, 64).expect("the same pages");
        let mut out = [0; 3];
        // SAFETY: this thread alone knows the memory.
        unsafe {
            one.copy_in(7, b"abc").expect("within");
            two.copy_out(7, &mut out).expect("within");
        }
        assert_eq!(&out, b"abc");
    }

    #[test]
    fn nothing_and_everything_are_refused() {
        assert!(matches!(HostMemory::anonymous(0), Err(Error::Value { .. })));
        assert!(HostMemory::anonymous(usize::MAX).is_err());
    }
}
