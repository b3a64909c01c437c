//! Slots in the memory of a GPU: allocated here, written by a fabric, read by kernels where they
//! lie.

use std::{
    os::fd::{FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

use cudarc::driver::sys::{self, CUdeviceptr};
use fabric::{DeviceMemory, Region};

use super::{Device, Fence, Registry, stream::Stream};
use crate::engine::EngineError;

/// What the driver maps memory in: a piece of its own for each connection, so that a NIC is given
/// nothing else.
const GRANULE: usize = 2 << 20;
/// Dma-bufs begin and end with pages.
const PAGE: u64 = 4096;

/// At least `bytes` of slots, zeros, of this GPU. Samples of a single input of one size are read
/// there in place; tensors of others are copied within the GPU.
///
/// # Errors
/// [`EngineError::Slots`], or the driver's.
pub(in crate::engine) fn slots(
    engine: &'static str,
    device: &Arc<Device>,
    registry: &Registry,
    bytes: usize,
) -> Result<Arc<Region>, EngineError> {
    if device.direct().fence == Fence::Impossible {
        return Err(EngineError::Slots {
            engine,
            reason: "the driver offers no fence behind a NIC's writes".to_owned(),
        });
    }
    device.bind()?;
    let region = Arc::new(Region::of_device(Box::new(Memory::new(device, bytes)?)));
    registry.on_gpu(device, &region);
    Ok(region)
}

/// See the module.
struct Memory {
    device: Arc<Device>,
    address: CUdeviceptr,
    bytes: usize,
    /// For the CPU's own copies there and back: a probe's, and those of a fabric inside this
    /// process.
    stream: Stream,
}

// SAFETY: handles and addresses of the driver may be used from any thread that is bound to the GPU,
// which every method sees to.
unsafe impl Send for Memory {}
// SAFETY: as above; the driver synchronises.
unsafe impl Sync for Memory {}

impl Memory {
    /// The thread is bound.
    fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, EngineError> {
        let stream = Stream::new(device)?;
        let rounded = bytes.max(1).checked_next_multiple_of(GRANULE);
        let rounded = rounded.ok_or_else(|| device.out_of_memory("taking memory for slots"))?;
        let mut address = 0;
        // SAFETY: `address` is a local that the function writes.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, rounded) };
        device.check("taking memory for slots", result)?;
        let memory = Memory {
            device: device.clone(),
            address,
            bytes: rounded,
            stream,
        };
        // SAFETY: the memory was just allocated with that many bytes.
        let result = unsafe { sys::cuMemsetD8Async(address, 0, rounded, memory.stream.raw()) };
        device.check("clearing slots", result)?;
        memory.stream.synchronize()?;
        Ok(memory)
    }

    /// Copies on the stream of its own and waits: a copy from memory that is not pinned may return
    /// before it is done.
    fn copy(&self, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Result<(), String> {
        let copied = self.device.bind().and_then(|()| {
            // SAFETY: one end lies in this memory, as the caller of `store` or `load` promises, the
            // other is a slice that lives until the stream has been waited for.
            let result = unsafe { sys::cuMemcpyAsync(to, from, bytes, self.stream.raw()) };
            self.device.check("copying slots", result)?;
            self.stream.synchronize()
        });
        copied.map_err(|e| e.to_string())
    }
}

impl DeviceMemory for Memory {
    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.address as *mut u8).unwrap_or(NonNull::dangling())
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn device(&self) -> String {
        format!("GPU {}", self.device.index())
    }

    fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), String> {
        let at = self.address + offset as CUdeviceptr;
        self.copy(at, bytes.as_ptr() as CUdeviceptr, bytes.len())
    }

    fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), String> {
        let at = self.address + offset as CUdeviceptr;
        self.copy(bytes.as_mut_ptr() as CUdeviceptr, at, bytes.len())
    }

    fn fence(&self) -> Result<(), String> {
        let fenced = self.device.bind().and_then(|()| self.device.fence());
        fenced.map_err(|e| e.to_string())
    }

    fn dma_buf(&self) -> Result<(OwnedFd, u64), String> {
        let direct = self.device.direct();
        if !(direct.dma_buf && direct.supported) {
            return Err("the driver exports no dma-bufs of this GPU".to_owned());
        }
        self.device.bind().map_err(|e| e.to_string())?;
        let before = self.address % PAGE;
        let bytes = (before as usize + self.bytes).next_multiple_of(PAGE as usize);
        let mut fd: libc::c_int = -1;
        // SAFETY: `fd` is a local of the type that this kind of handle has; the range is within one
        // allocation, whose granules are multiples of pages.
        let result = unsafe {
            sys::cuMemGetHandleForAddressRange(
                (&raw mut fd).cast(),
                self.address - before,
                bytes,
                sys::CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                0,
            )
        };
        let checked = self.device.check("exporting a dma-buf", result);
        checked.map_err(|e| e.to_string())?;
        // SAFETY: the driver has just made it for us.
        Ok((unsafe { OwnedFd::from_raw_fd(fd) }, before))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `new`, and nobody has the address any more: the region's guards
            // are gone.
            unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}
