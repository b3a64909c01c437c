//! Memory on the GPU, and pinned memory of the host.

use std::{ptr::NonNull, sync::Arc};

use cudarc::driver::sys::{self, CUdeviceptr};

use super::{Device, stream::Stream};
use crate::engine::EngineError;

/// Memory on a GPU.
#[derive(Debug)]
pub(in crate::engine) struct DeviceMemory {
    address: CUdeviceptr,
    bytes: usize,
}

impl DeviceMemory {
    /// `bytes` zeros (at least one). The thread is bound.
    pub(super) fn new(
        device: &Arc<Device>,
        stream: &Stream,
        bytes: usize,
    ) -> Result<Self, EngineError> {
        let bytes = bytes.max(1);
        let mut address = 0;
        // SAFETY: `address` is a local that the function writes.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes) };
        device.check("taking memory for inputs", result)?;
        let memory = DeviceMemory { address, bytes };
        memory.clear(device, stream, bytes)?;
        Ok(memory)
    }

    /// Fills the first `bytes`, or all of it, with zeros, on the stream. The thread is bound.
    pub(super) fn clear(
        &self,
        device: &Device,
        stream: &Stream,
        bytes: usize,
    ) -> Result<(), EngineError> {
        let bytes = bytes.min(self.bytes);
        // SAFETY: the memory was allocated with at least that many bytes.
        let result = unsafe { sys::cuMemsetD8Async(self.address, 0, bytes, stream.raw()) };
        device.check("clearing memory", result)
    }

    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: the owner's stream is idle or destroyed; freeing waits for what is left.
        unsafe { sys::cuMemFree_v2(self.address) };
    }
}

/// Pinned memory of the host: copies to and from it need no staging. Cached, so the CPU may read
/// it.
#[derive(Debug)]
pub(super) struct Pinned {
    address: NonNull<u8>,
    bytes: usize,
}

impl Pinned {
    /// `bytes` zeros (at least one). The thread is bound.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, EngineError> {
        let bytes = bytes.max(1);
        let mut address = std::ptr::null_mut();
        // SAFETY: `address` is a local that the function writes.
        let result =
            unsafe { sys::cuMemHostAlloc(&mut address, bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
        device.check("pinning memory of the host", result)?;
        let address = NonNull::new(address.cast::<u8>())
            .ok_or_else(|| device.out_of_memory("pinning memory of the host"))?;
        // SAFETY: just allocated with that many bytes, and nobody else knows it.
        unsafe { address.as_ptr().write_bytes(0, bytes) };
        Ok(Pinned { address, bytes })
    }

    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// What a copy from the GPU left.
    ///
    /// # Safety
    /// The copy is done, and none writes while the slice lives.
    pub unsafe fn bytes(&self, len: usize) -> &[u8] {
        let len = len.min(self.bytes);
        // SAFETY: allocated and initialised with `bytes` bytes; the caller promises that nobody
        // writes.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by `cuMemHostAlloc`, and nobody has the address any more.
        unsafe { sys::cuMemFreeHost(self.address.as_ptr().cast()) };
    }
}
