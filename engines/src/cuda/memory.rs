//! Allocates memory on the GPU, and pinned memory of the host.

use std::{ptr::NonNull, sync::Arc};

use cudarc::driver::sys::{self, CUdeviceptr};

use super::{Device, stream::CudaStream};
use crate::EngineError;

#[derive(Debug)]
pub(crate) struct DeviceMemory {
    address: CUdeviceptr,
    bytes: usize,
}

impl DeviceMemory {
    /// Allocates `bytes` zeros (at least one). The thread must be bound to the GPU. `verb` names
    /// the action in the message of an error.
    pub(super) fn new(
        device: &Arc<Device>,
        stream: &CudaStream,
        verb: &'static str,
        bytes: usize,
    ) -> Result<Self, EngineError> {
        let bytes = bytes.max(1);
        let mut address = 0;
        // SAFETY: the function writes the local `address`.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes) };
        device.check(verb, result)?;
        let memory = DeviceMemory { address, bytes };
        memory.clear(device, stream, bytes)?;
        Ok(memory)
    }

    /// Enqueues zeros for the first `bytes` bytes, at most all. Bind the thread to the GPU first.
    pub(super) fn clear(
        &self,
        device: &Device,
        stream: &CudaStream,
        bytes: usize,
    ) -> Result<(), EngineError> {
        let bytes = bytes.min(self.bytes);
        // SAFETY: the allocation has at least that many bytes.
        let result = unsafe { sys::cuMemsetD8Async(self.address, 0, bytes, stream.raw) };
        device.check("clearing memory", result)
    }

    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: the owner's stream is idle or destroyed; `cuMemFree` waits for remaining work.
        unsafe { sys::cuMemFree_v2(self.address) };
    }
}

/// Pinned host memory: copies to and from the GPU need no staging. CPU reads are cached and fast.
#[derive(Debug)]
pub(super) struct Pinned {
    address: NonNull<u8>,
    bytes: usize,
}

impl Pinned {
    /// Allocates `bytes` zeros (at least one). The thread must be bound to the GPU.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, EngineError> {
        let bytes = bytes.max(1);
        let mut address = std::ptr::null_mut();
        // SAFETY: the function writes the local `address`.
        let result =
            unsafe { sys::cuMemHostAlloc(&mut address, bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
        device.check("pinning memory of the host", result)?;
        let address = NonNull::new(address.cast::<u8>())
            .ok_or_else(|| device.out_of_memory("pinning memory of the host"))?;
        // SAFETY: just allocated with that many bytes, and only this function has the address.
        unsafe { address.as_ptr().write_bytes(0, bytes) };
        Ok(Pinned { address, bytes })
    }

    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// The first `len` bytes, at most all: the result of a copy from the GPU.
    ///
    /// # Safety
    /// The copy is complete, and no other copy writes while the slice lives.
    pub unsafe fn bytes(&self, len: usize) -> &[u8] {
        let len = len.min(self.bytes);
        // SAFETY: `bytes` bytes are allocated and initialised; the caller excludes writers.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by `cuMemHostAlloc`, and `self` holds the only address.
        unsafe { sys::cuMemFreeHost(self.address.as_ptr().cast()) };
    }
}
