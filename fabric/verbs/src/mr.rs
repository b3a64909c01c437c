//! Protection domains and memory regions.

use std::any::Any;
use std::ffi::c_int;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::Error;
use crate::device::Context;
use crate::raw;

/// A protection domain: its queue pairs access only the memory regions of the same domain.
pub struct Pd {
    pub(crate) context: Arc<Context>,
    raw: NonNull<raw::ibv_pd>,
}

// SAFETY: libibverbs allows every call on a domain from any thread; only `drop` frees it.
unsafe impl Send for Pd {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pd {}

impl Pd {
    /// Allocates a protection domain.
    pub fn alloc(context: &Arc<Context>) -> Result<Arc<Self>, Error> {
        // SAFETY: `context` is open.
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

    /// The raw domain, valid as long as `self`.
    pub(crate) fn as_raw(&self) -> *mut raw::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: `alloc` made the domain, and only this `drop` frees it. Its objects held an `Arc`
        // of `self` and are gone.
        let result = unsafe { (self.context.api().dealloc_pd)(self.as_raw()) };
        if result != 0 {
            mem::forget(Arc::clone(&self.context));
        }
    }
}

/// Access rights to a memory region. PCIe writes to the region may be reordered (relaxed ordering),
/// which fast NICs need for their full rate; a completion still follows its data. A kernel or
/// device without relaxed ordering ignores the flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads by this device alone, as a send source needs.
    LocalRead,
    /// Writes by peers; the specification requires local write access with it.
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

/// A registered memory region. Keeps the memory's owner alive until deregistration.
pub struct Mr {
    pub(crate) pd: Arc<Pd>,
    raw: NonNull<raw::ibv_mr>,
    /// Address of the first byte as work requests name it.
    base: u64,
    len: usize,
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: the region's keys and address are constant; only `drop` deregisters it.
unsafe impl Send for Mr {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers `len` bytes at `at`: pins their pages and keeps `owner` alive until the region is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Refused`] if the range is larger than the device allows, or [`Error::Verb`].
    ///
    /// # Safety
    /// While `owner` lives, the range is mapped and readable, and writable unless registered with
    /// [`Access::LocalRead`]. While a NIC may write a byte, no Rust reference to that byte exists:
    /// the fabric's protocol defines when a byte may be read.
    pub unsafe fn register(
        pd: &Arc<Pd>,
        at: *mut u8,
        len: usize,
        access: Access,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Arc<Self>, Error> {
        Self::check_size(pd, len)?;
        // SAFETY: the domain is live. The caller guarantees that the range is mapped while `owner`
        // lives, which the region holds.
        let raw = unsafe {
            (pd.context.api().reg_mr_iova2)(pd.as_raw(), at.cast(), len, at as u64, access.bits())
        };
        let doing = || format!("registering {len} bytes on {}", pd.context.name());
        let raw = NonNull::new(raw).ok_or_else(|| Error::verb_errno("ibv_reg_mr", doing))?;
        Ok(Self::of(pd, raw, at as u64, len, owner))
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

    /// Registers `len` bytes from `offset` of a dma-buf, such as a GPU driver's export of its
    /// memory. Work requests address these bytes from `iova` on, for instance the GPU's own
    /// address. The region keeps `owner` and the descriptor alive.
    ///
    /// # Errors
    /// [`Error::Refused`] if libibverbs is too old or the memory too large, or [`Error::Verb`].
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
        let register = register.ok_or_else(|| {
            let needed = "rdma-core 34 or newer is needed";
            Error::Refused(format!(
                "registering memory of another device (ibv_reg_dmabuf_mr) is not supported by this \
                 libibverbs: {needed}"
            ))
        })?;
        Self::check_size(pd, len)?;
        // SAFETY: the domain is live. The kernel takes its own reference to the dma-buf, so no
        // mapping in this process is required.
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
        // Software devices report 0 or all ones for "no limit".
        let limit = pd.context.limits().max_mr_size;
        if limit == 0 || len as u64 <= limit {
            return Ok(());
        }
        let device = &pd.context.name;
        Err(Error::Refused(format!(
            "a memory region in bytes of {len} exceeds {device}'s limit of {limit} (max_mr_size)"
        )))
    }

    /// A range of the region, for a work request; `None` if it exceeds the region or 4 GiB.
    pub fn slice(&self, offset: usize, len: usize) -> Option<LocalSlice> {
        offset.checked_add(len).filter(|&end| end <= self.len)?;
        Some(LocalSlice {
            addr: self.base + offset as u64,
            len: u32::try_from(len).ok()?,
            // SAFETY: the region is registered, and its keys are constant.
            lkey: unsafe { (*self.raw.as_ptr()).lkey },
        })
    }

    /// Address and key of the first byte, which the peer needs to write into this region.
    pub fn remote(&self) -> RemoteSlice {
        // SAFETY: as in `slice`.
        let rkey = unsafe { (*self.raw.as_ptr()).rkey };
        RemoteSlice {
            addr: self.base,
            rkey,
        }
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "there is always memory")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: this library registered the region; only this `drop` deregisters it.
        let result = unsafe { (self.pd.context.api().dereg_mr)(self.raw.as_ptr()) };
        if result != 0 {
            // The region is still registered, so its memory must stay mapped.
            mem::forget(self.owner.take());
            mem::forget(Arc::clone(&self.pd));
        }
    }
}

/// A range of a local region, for a work request. The device checks its key: after the region is
/// deregistered, a work request with that key fails and accesses no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalSlice {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// Target of an RDMA WRITE in the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteSlice {
    /// Address on the peer.
    pub addr: u64,
    /// The remote key of the peer's region.
    pub rkey: u32,
}
