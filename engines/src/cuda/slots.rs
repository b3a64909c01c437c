//! Allocates slots in GPU memory: a fabric writes samples there, kernels read them in place.

use std::{
    mem::ManuallyDrop,
    os::fd::{FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

use cudarc::driver::sys::{self, CUdeviceptr};
use fabric::{DeviceMemory, Region};

use super::{Device, Fence, memory, registry, stream::CudaStream};
use crate::EngineError;

/// Mapping granularity of the driver, in bytes. No two connections share a granule, so that a
/// connection's NIC can reach no other memory.
const GRANULE: usize = 2 << 20;
/// Alignment of the begin and the end of a dma-buf, in bytes.
const PAGE: u64 = 4096;

/// Allocates at least `bytes` bytes of zeroed slots on `device`. Kernels read samples in place if
/// the model has a single input of fixed size; other inputs are copied within the GPU.
/// Error: the GPU has no usable fence; the driver's errors.
pub(super) fn slots(
    engine: &'static str,
    device: &Arc<Device>,
    bytes: usize,
) -> Result<Arc<Region>, EngineError> {
    if device.direct.fence == Fence::Impossible {
        let reason = "the driver offers no fence behind a NIC's writes";
        return Err(EngineError::slots(engine, reason));
    }
    device.bind()?;
    let region = Arc::new(Region::of_device(Box::new(SlotMemory::new(device, bytes)?)));
    registry::on_gpu(device, &region);
    Ok(region)
}

struct SlotMemory {
    device: Arc<Device>,
    /// `ManuallyDrop`, so that `drop` frees the memory after it has bound the thread to the GPU.
    memory: ManuallyDrop<memory::DeviceMemory>,
    bytes: usize,
    /// Stream for copies by the CPU: of a probe, and of a fabric inside this process.
    stream: CudaStream,
}

// SAFETY: any thread that is bound to the GPU may use the driver's handles and addresses; every
// method binds its thread.
unsafe impl Send for SlotMemory {}
// SAFETY: as above; the driver synchronises.
unsafe impl Sync for SlotMemory {}

impl SlotMemory {
    fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, EngineError> {
        let stream = CudaStream::new(device)?;
        let verb = "taking memory for slots";
        let rounded = bytes.max(1).checked_next_multiple_of(GRANULE);
        let rounded = rounded.ok_or_else(|| device.out_of_memory(verb))?;
        let memory = memory::DeviceMemory::new(device, &stream, verb, rounded)?;
        stream.synchronize()?;
        Ok(SlotMemory {
            device: device.clone(),
            memory: ManuallyDrop::new(memory),
            bytes: rounded,
            stream,
        })
    }

    /// Copies on `stream` and waits: the call may return before a copy of unpinned memory is done.
    fn copy(&self, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Result<(), String> {
        let copied = self.device.bind().and_then(|()| {
            // SAFETY: one end lies in this memory, as the caller of `store` or `load` guarantees;
            // the other is a slice that lives until the stream has been waited for.
            let result = unsafe { sys::cuMemcpyAsync(to, from, bytes, self.stream.raw) };
            self.device.check("copying slots", result)?;
            self.stream.synchronize()
        });
        copied.map_err(|e| e.to_string())
    }
}

impl DeviceMemory for SlotMemory {
    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.memory.address() as *mut u8).unwrap_or(NonNull::dangling())
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn device(&self) -> String {
        format!("GPU {}", self.device.index)
    }

    fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), String> {
        let at = self.memory.address() + offset as CUdeviceptr;
        self.copy(at, bytes.as_ptr() as CUdeviceptr, bytes.len())
    }

    fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), String> {
        let at = self.memory.address() + offset as CUdeviceptr;
        self.copy(bytes.as_mut_ptr() as CUdeviceptr, at, bytes.len())
    }

    fn fence(&self) -> Result<(), String> {
        let fenced = self.device.bind().and_then(|()| self.device.fence());
        fenced.map_err(|e| e.to_string())
    }

    fn dma_buf(&self) -> Result<(OwnedFd, u64), String> {
        let direct = self.device.direct;
        if !(direct.dma_buf && direct.supported) {
            return Err("the driver exports no dma-bufs of this GPU".to_owned());
        }
        self.device.bind().map_err(|e| e.to_string())?;
        let before = self.memory.address() % PAGE;
        let bytes = (before as usize + self.bytes).next_multiple_of(PAGE as usize);
        let mut fd: libc::c_int = -1;
        // SAFETY: `fd` is a local of the type for this kind of handle; the range lies within one
        // allocation, whose granules are multiples of pages.
        let result = unsafe {
            sys::cuMemGetHandleForAddressRange(
                (&raw mut fd).cast(),
                self.memory.address() - before,
                bytes,
                sys::CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                0,
            )
        };
        let checked = self.device.check("exporting a dma-buf", result);
        checked.map_err(|e| e.to_string())?;
        // SAFETY: the driver has just made this descriptor for this call.
        Ok((unsafe { OwnedFd::from_raw_fd(fd) }, before))
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: dropped once; the region's guards are gone, so no other copy of the address
            // is in use.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
