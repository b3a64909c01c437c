//! The kernel that gathers a batch ([`super::gatherer`]), on one GPU.

use std::{
    ffi::{CStr, CString},
    ptr,
    sync::{Arc, OnceLock},
};

use cudarc::driver::sys::{self, CUfunction};

use super::Device;
use crate::engine::EngineError;

pub(super) const PTX: &str = include_str!("gather/kernel.ptx");
/// In `gather/kernel.cu`.
pub(super) const NAME: &CStr = c"qdl_gather";

/// The kernel on one GPU.
#[derive(Debug)]
pub(super) struct Kernel(CUfunction);

// SAFETY: a function handle of the driver may be used from any thread that is bound to its context.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// What is launched.
    pub fn function(&self) -> CUfunction {
        self.0
    }

    /// Has the driver compile it, for as long as the context lives. The thread is bound.
    ///
    /// # Errors
    /// A driver that has no compiler for PTX, or none for this PTX.
    pub fn load(device: &Device) -> Result<Self, EngineError> {
        let text = CString::new(PTX).unwrap_or_default();
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the text ends with a zero and is only read; `module` is a local that is written.
        let loaded = unsafe { sys::cuModuleLoadData(&mut module, text.as_ptr().cast()) };
        device.check("loading the kernel that gathers", loaded)?;
        // SAFETY: the module was just loaded, and stays; `function` is a local that is written.
        let found = unsafe { sys::cuModuleGetFunction(&mut function, module, NAME.as_ptr()) };
        device.check("finding the kernel that gathers", found)?;
        Ok(Kernel(function))
    }
}

/// A kernel that is loaded when the first worker asks for it.
#[derive(Debug, Default)]
pub(super) struct Lazy(OnceLock<Option<Arc<Kernel>>>);

impl Lazy {
    /// The kernel, or nothing where the driver refuses it, which is said once. The thread is bound.
    pub fn get(&self, device: &Device) -> Option<Arc<Kernel>> {
        let load = || match Kernel::load(device) {
            Ok(kernel) => Some(Arc::new(kernel)),
            Err(e) => {
                tracing::warn!("inputs are gathered by copies, and padded on the CPU: {e}");
                None
            }
        };
        self.0.get_or_init(load).clone()
    }
}
