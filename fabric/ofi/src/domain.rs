//! A domain: an opened NIC.

use std::ptr;
use std::sync::Arc;

use crate::error::Error;
use crate::library::Info;
use crate::raw;

/// An opened NIC. Endpoints and regions of one domain work together.
pub struct Domain {
    info: Arc<Info>,
    fabric: *mut raw::fid_fabric,
    domain: *mut raw::fid_domain,
}

// SAFETY: the domain is opened with `FI_THREAD_SAFE`: all threads may use it and its objects.
unsafe impl Send for Domain {}
// SAFETY: as for Send.
unsafe impl Sync for Domain {}

impl Domain {
    /// Opens the NIC. Pin the thread near the NIC first: the provider allocates memory near the
    /// calling thread.
    pub fn open(info: &Arc<Info>) -> Result<Arc<Self>, Error> {
        let ofi = info.ofi();
        let failed = |call, code: i32| {
            let doing = format!("opening {}", info.domain());
            ofi.failed(call, code.into(), info.provider(), doing)
        };
        let (raw, none) = (info.raw().as_ptr(), ptr::null_mut());
        let mut opened = Domain {
            info: Arc::clone(info),
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
        };
        // SAFETY: the attributes belong to the info; each call writes the object for the next call,
        // with the provider's table.
        unsafe {
            let code = (ofi.api.fabric)((*raw).fabric_attr, &raw mut opened.fabric, none);
            if code != 0 || opened.fabric.is_null() {
                return Err(failed("fi_fabric", code));
            }
            let (fabric, domain) = (opened.fabric, &raw mut opened.domain);
            let code = raw::call!((*fabric).ops, domain(fabric, raw, domain, none));
            if code != 0 || opened.domain.is_null() {
                return Err(failed("fi_domain", code));
            }
        }
        Ok(Arc::new(opened))
    }

    pub(crate) fn info(&self) -> &Arc<Info> {
        &self.info
    }

    pub(crate) fn fabric(&self) -> *mut raw::fid_fabric {
        self.fabric
    }

    pub(crate) fn raw(&self) -> *mut raw::fid_domain {
        self.domain
    }

    pub(crate) fn failed(&self, call: &'static str, code: i64, doing: String) -> Error {
        let info = &self.info;
        info.ofi().failed(call, code, info.provider(), doing)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: all objects of the domain and the fabric hold this value, so they are closed. The
        // domain is closed before its fabric.
        unsafe {
            close(self.domain.cast());
            close(self.fabric.cast());
        }
    }
}

/// Closes an object. Returns false if the provider refuses and may still use the object's memory.
///
/// # Safety
/// `object` must be null, or an open object without further use.
pub(crate) unsafe fn close(object: *mut raw::fid) -> bool {
    if object.is_null() {
        return true;
    }
    // SAFETY: the object is open, its table is the provider's, and this is its last use.
    unsafe { raw::call!((*object).ops, close(object)) == 0 }
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.info.fmt(f)
    }
}
