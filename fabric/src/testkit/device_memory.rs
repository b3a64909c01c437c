//! A device's memory without a GPU: bytes in a memfd, behind addresses that fault on access.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use crate::{DeviceMemory, os::Mapping};

/// Shared with the test: counts fences and injects faults.
#[derive(Debug, Default)]
pub struct Handle {
    /// Number of fences.
    pub fences: AtomicU64,
    /// Makes `dma_buf` fail.
    pub no_dma_buf: AtomicBool,
    /// Makes `load` return a wrong first byte.
    pub blind: AtomicBool,
}

/// Device memory backed by a memfd.
#[derive(Debug)]
pub struct Pretended {
    file: File,
    /// Addresses that fault on access.
    addresses: Mapping,
    handle: Arc<Handle>,
}

impl Pretended {
    /// Makes device memory of `bytes` zeros.
    ///
    /// # Errors
    /// A system call fails.
    pub fn new(bytes: usize, handle: &Arc<Handle>) -> io::Result<Self> {
        // SAFETY: the name ends in zero; this function owns the descriptor.
        let fd = unsafe { libc::memfd_create(c"pretended".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above returned `fd`, and nothing else owns it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes as u64)?;
        Ok(Pretended {
            file,
            addresses: Mapping::untouchable(bytes)?,
            handle: handle.clone(),
        })
    }
}

impl DeviceMemory for Pretended {
    fn base(&self) -> NonNull<u8> {
        self.addresses.base()
    }

    fn bytes(&self) -> usize {
        self.addresses.len()
    }

    fn device(&self) -> String {
        "GPU 77".to_owned()
    }

    fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), String> {
        let written = self.file.write_all_at(bytes, offset as u64);
        written.map_err(|e| e.to_string())
    }

    fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), String> {
        let read = self.file.read_exact_at(bytes, offset as u64);
        if self.handle.blind.load(SeqCst) {
            bytes[0] ^= 1;
        }
        read.map_err(|e| e.to_string())
    }

    fn fence(&self) -> Result<(), String> {
        self.handle.fences.fetch_add(1, SeqCst);
        Ok(())
    }

    fn dma_buf(&self) -> Result<(OwnedFd, u64), String> {
        if self.handle.no_dma_buf.load(SeqCst) {
            return Err("GPU 77 exports none".to_owned());
        }
        // SAFETY: the call duplicates a descriptor that `self` keeps open.
        let fd = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error().to_string());
        }
        // SAFETY: the call above returned `fd`, and nothing else owns it.
        Ok((unsafe { OwnedFd::from_raw_fd(fd) }, 0))
    }
}
