//! Protection domains and memory regions.

use std::any::Any;
use std::ffi::c_int;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::context::Context;
use crate::Error;
use crate::raw;

/// Owns a range of memory that a NIC may read and write at any time while it is registered.
///
/// # Safety
///
/// For as long as the value lives, `addr()..addr() + len()` is mapped at that address, readable and
/// (unless it is registered without any write access) writable. No Rust reference to a byte of it
/// exists while a NIC may write that byte: the owner hands out raw pointers, and the protocol above
/// says which byte may be followed when.
#[expect(clippy::len_without_is_empty, reason = "there is always memory")]
pub unsafe trait Memory: Send + Sync + 'static {
    /// The first byte.
    fn addr(&self) -> NonNull<u8>;
    /// How many bytes.
    fn len(&self) -> usize;
}

/// A protection domain: queue pairs reach the memory regions of their own domain only.
pub struct Pd {
    pub(super) context: Arc<Context>,
    raw: NonNull<raw::ibv_pd>,
}

// SAFETY: libibverbs allows every call on a domain from every thread; it is freed only in `drop`.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// Allocates one.
    ///
    /// # Errors
    ///
    /// The verb's.
    pub fn alloc(context: &Arc<Context>) -> Result<Arc<Self>, Error> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.api().alloc_pd)(context.as_raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            Error::verb_errno("ibv_alloc_pd", || {
                format!("allocating a protection domain on {}", context.name())
            })
        })?;
        Ok(Arc::new(Self {
            context: Arc::clone(context),
            raw,
        }))
    }

    /// The device it is on.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The raw domain, valid for as long as `self`.
    pub(crate) fn as_raw(&self) -> *mut raw::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: allocated by this library, freed once; everything in it held an `Arc` of `self`
        // and is gone.
        let result = unsafe { (self.context.api().dealloc_pd)(self.as_raw()) };
        if result != 0 {
            mem::forget(Arc::clone(&self.context));
        }
    }
}

/// Who may access a memory region. PCIe writes to it may overtake each other (relaxed ordering),
/// which fast NICs need for their full rate; a completion still comes after its data. A kernel or
/// device without relaxed ordering ignores the wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading by this device alone: enough for memory that is only sent from.
    LocalRead,
    /// Writing by peers; the specification wants local writing with it.
    RemoteWrite,
}

impl Access {
    fn bits(self) -> u32 {
        raw::IBV_ACCESS_RELAXED_ORDERING
            | match self {
                Self::LocalRead => 0,
                Self::RemoteWrite => raw::IBV_ACCESS_REMOTE_WRITE | raw::IBV_ACCESS_LOCAL_WRITE,
            }
    }
}

/// A registered memory region. Keeps the memory's owner alive until it is deregistered.
pub struct Mr {
    pub(super) pd: Arc<Pd>,
    raw: NonNull<raw::ibv_mr>,
    /// The address that work requests use.
    base: u64,
    len: usize,
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: the region's keys and address do not change; it is deregistered only in `drop`.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers all of `memory`: its pages are pinned until the region is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`] when it is larger than the device allows, or the verb's.
    pub fn register<M: Memory>(
        pd: &Arc<Pd>,
        memory: &Arc<M>,
        access: Access,
    ) -> Result<Arc<Self>, Error> {
        let (addr, len) = (memory.addr(), memory.len());
        Self::check_size(pd, len)?;
        // SAFETY: the domain is live. `Memory` promises that the range is mapped for as long as
        // `owner` lives.
        let raw = unsafe {
            let at = addr.as_ptr();
            (pd.context.api().reg_mr_iova2)(pd.as_raw(), at.cast(), len, at as u64, access.bits())
        };
        let doing = || format!("registering {len} bytes on {}", pd.context.name());
        let raw = NonNull::new(raw).ok_or_else(|| Error::verb_errno("ibv_reg_mr", doing))?;
        Ok(Self::of(pd, raw, addr.as_ptr() as u64, len, memory.clone()))
    }

    fn of(
        pd: &Arc<Pd>,
        raw: NonNull<raw::ibv_mr>,
        base: u64,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(Self {
            pd: Arc::clone(pd),
            raw,
            base,
            len,
            owner: Some(owner),
        })
    }

    /// Registers `len` bytes from `offset` of a dma-buf, such as the one that a GPU's driver
    /// exports for its memory. Work requests address them from `iova` on (the GPU's own address is
    /// a good choice); `owner` is kept alive, with the descriptor, until the region is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when the library is too old, [`Error::Limit`], or the verb's.
    pub fn register_dmabuf(
        pd: &Arc<Pd>,
        dmabuf: OwnedFd,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Arc<Self>, Error> {
        let register = pd.context.api().reg_dmabuf_mr;
        let register = register.ok_or_else(|| Error::Unsupported {
            what: "registering memory of another device (ibv_reg_dmabuf_mr)",
            by: "this libibverbs: rdma-core 34 or newer is needed".to_owned(),
        })?;
        Self::check_size(pd, len)?;
        // SAFETY: the domain is live; the kernel holds a dma-buf of its own from here on, so no
        // mapping is promised.
        let raw = unsafe {
            let (domain, fd, access) = (pd.as_raw(), dmabuf.as_raw_fd(), access.bits() as c_int);
            register(domain, offset, len, iova, fd, access)
        };
        let doing = || {
            let device = pd.context.name();
            format!("registering {len} bytes of a dma-buf on {device}")
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::verb_errno("ibv_reg_dmabuf_mr", doing))?;
        Ok(Self::of(pd, raw, iova, len, Arc::new((dmabuf, owner))))
    }

    fn check_size(pd: &Pd, len: usize) -> Result<(), Error> {
        // Software devices say 0 or all ones for "no limit of its own".
        let limit = match pd.context.limits().max_mr_size {
            0 => u64::MAX,
            limit => limit,
        };
        pd.context
            .check_limit("a memory region in bytes", len as u64, limit, "max_mr_size")
    }

    /// The key for this node's own work requests.
    fn lkey(&self) -> u32 {
        // SAFETY: the region is registered; its keys do not change.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// The key for the peers' work requests.
    fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// Some of its bytes, to be sent from or received into.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRegion`].
    pub fn slice(&self, offset: usize, len: usize) -> Result<LocalSlice, Error> {
        let end = offset.checked_add(len).filter(|&end| end <= self.len);
        let (Some(_), Ok(length)) = (end, u32::try_from(len)) else {
            return Err(Error::OutOfRegion {
                offset,
                asked: len,
                length: self.len,
            });
        };
        Ok(LocalSlice {
            addr: self.base + offset as u64,
            len: length,
            lkey: self.lkey(),
        })
    }

    /// What a peer has to know in order to write here.
    #[must_use]
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion {
            addr: self.base,
            len: self.len as u64,
            rkey: self.rkey(),
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: registered by this library, deregistered once.
        let result = unsafe { (self.pd.context.api().dereg_mr)(self.raw.as_ptr()) };
        if result != 0 {
            // Still registered: the memory must stay.
            mem::forget(self.owner.take());
            mem::forget(Arc::clone(&self.pd));
        }
    }
}

/// Bytes of a region of this node, as a work request names them. The device checks the key: once
/// the region is gone, a work request with it fails and touches nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalSlice {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// A peer's region, as the peer announced it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteRegion {
    /// The peer's address of its first byte.
    pub addr: u64,
    /// How many bytes.
    pub len: u64,
    /// The key.
    pub rkey: u32,
}

/// Where an RDMA WRITE begins in a peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteSlice {
    /// The peer's address.
    pub addr: u64,
    /// The key of the peer's region.
    pub rkey: u32,
}
