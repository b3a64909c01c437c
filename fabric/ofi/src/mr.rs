//! Memory for operations, and its registration.

use std::any::Any;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use libc::iovec;

use crate::domain::{Domain, close};
use crate::error::Error;
use crate::raw;

/// Memory that a NIC may read or write.
pub struct Memory {
    at: *mut u8,
    len: usize,
    owner: Arc<dyn Any + Send + Sync>,
}

impl Memory {
    /// `len` bytes at `at`, at least 1.
    ///
    /// # Safety
    /// The bytes must stay mapped while `owner` lives. No Rust reference to them may exist while a
    /// NIC or a peer may write them.
    pub unsafe fn new(at: *mut u8, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Memory { at, len, owner }
    }
}

/// A region that a peer may write, or the position in a region where a write begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteRegion {
    /// Address that offsets are added to; 0 for providers that count from 0.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Key that permits writes.
    pub key: u64,
}

/// Source memory of writes, registered if the provider requires it.
pub struct Mr {
    // Dropped before the domain.
    registered: Registered,
    domain: Arc<Domain>,
}

/// A registration, if there is one, with its memory, which outlives the registration.
pub(crate) struct Registered {
    raw: *mut raw::fid_mr,
    memory: Memory,
}

// SAFETY: a registration belongs to a domain that any thread may use.
unsafe impl Send for Registered {}
// SAFETY: as for Send; the descriptor is read-only.
unsafe impl Sync for Registered {}

impl Registered {
    fn descriptor(&self) -> *mut c_void {
        // SAFETY: the pointer is null or an open registration.
        unsafe { self.raw.as_ref() }.map_or(ptr::null_mut(), |mr| mr.mem_desc)
    }

    pub(crate) fn remote(&self, by_address: bool) -> RemoteRegion {
        RemoteRegion {
            addr: if by_address { self.memory.at as u64 } else { 0 },
            len: self.memory.len as u64,
            // SAFETY: the pointer is null or an open registration.
            key: unsafe { self.raw.as_ref() }.map_or(0, |mr| mr.key),
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: null, or open and unused: endpoints hold the registration until they are closed.
        if !unsafe { close(self.raw.cast()) } {
            // The provider may still use the memory, so leak it.
            std::mem::forget(Arc::clone(&self.memory.owner));
        }
    }
}

impl Mr {
    /// Registers `memory` as a source, if required; with `key`, unless the provider chooses keys.
    pub fn source(domain: &Arc<Domain>, memory: Memory, key: u64) -> Result<Arc<Self>, Error> {
        let registered = if domain.info().limits().registers_sources {
            register(domain, memory, raw::FI_WRITE, key, ptr::null_mut())?
        } else {
            let raw = ptr::null_mut();
            Registered { raw, memory }
        };
        Ok(Arc::new(Mr {
            registered,
            domain: Arc::clone(domain),
        }))
    }

    /// Returns address and descriptor of `len` bytes at `offset`, if they are in range.
    pub(crate) fn slice(&self, offset: usize, len: usize) -> Option<(*mut u8, *mut c_void)> {
        let end = offset.checked_add(len)?;
        let memory = &self.registered.memory;
        let at = memory.at.wrapping_add(offset);
        (end <= memory.len).then(|| (at, self.registered.descriptor()))
    }

    pub(crate) fn is_of(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }
}

impl std::fmt::Debug for Mr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} bytes of {:?}",
            self.registered.memory.len, self.domain
        )
    }
}

/// Registers memory; bound to `endpoint` if the provider requires that.
pub(crate) fn register(
    domain: &Arc<Domain>,
    memory: Memory,
    access: u64,
    key: u64,
    endpoint: *mut raw::fid_ep,
) -> Result<Registered, Error> {
    let info = domain.info();
    let (at, len) = (memory.at, memory.len);
    let failed = |call, code: i32| {
        let doing = format!("registering {len} bytes on {}", info.domain());
        domain.failed(call, code.into(), doing)
    };
    let bits = 8 * info.limits().key_bytes.min(8) as u32;
    let requested_key = match bits {
        0 | 64 => key,
        bits => key & ((1 << bits) - 1),
    };
    let range = iovec {
        iov_base: at.cast(),
        iov_len: len,
    };
    // Newer libraries read more fields if a flag is set; zeroes select the old behaviour.
    let mut attr = std::mem::MaybeUninit::<[raw::fi_mr_attr; 2]>::zeroed();
    let first = attr.as_mut_ptr().cast::<raw::fi_mr_attr>();
    let mut raw = ptr::null_mut();
    // SAFETY: all zeroes are a valid `fi_mr_attr`; the call copies `range`.
    let code = unsafe {
        (*first).mr_iov = &raw const range;
        (*first).iov_count = 1;
        (*first).access = access;
        (*first).requested_key = requested_key;
        (*first).iface = raw::FI_HMEM_SYSTEM;
        let object = domain.raw();
        raw::call!((*object).mr, regattr(object.cast(), first, 0, &raw mut raw))
    };
    if code != 0 || raw.is_null() {
        return Err(failed("fi_mr_regattr", code));
    }
    let registered = Registered { raw, memory };
    if !endpoint.is_null() && info.has_mr_mode(raw::FI_MR_ENDPOINT) {
        // SAFETY: both objects are open, with the provider's tables.
        unsafe {
            let (fid, ops) = (raw.cast(), (*raw).fid.ops);
            let code = raw::call!(ops, bind(fid, endpoint.cast(), 0));
            if code != 0 {
                return Err(failed("fi_mr_bind", code));
            }
            let code = raw::call!(ops, control(fid, raw::FI_ENABLE, ptr::null_mut()));
            if code != 0 {
                return Err(failed("fi_mr_enable", code));
            }
        }
    }
    Ok(registered)
}
