//! Copies a batch's inputs from the samples' slots to the GPU memory that the kernels read.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr};
use qdl::model::ModelSpec;

use super::{
    Device, Fence, Gpu,
    gpu::Staged,
    memory::DeviceMemory,
    pieces::{self, CopyPiece, Pieces},
    registry::{self, MemoryKind},
    stream::{CudaEvent, CudaStream},
};
use crate::{Batch, EngineError, batch::Unpacker};

/// Input buffers and copy stream of one worker. The worker's thread makes and uses them.
pub(super) struct Inputs {
    device: Arc<Device>,
    stream: CudaStream,
    unpacker: Unpacker,
    memory: Vec<DeviceMemory>,
    pieces: Pieces,
    lists: Lists,
}

impl Inputs {
    /// Allocates buffers for the largest batch of `gpu`. The thread is bound to the GPU.
    pub fn new(gpu: &Gpu, model: &ModelSpec) -> Result<Self, EngineError> {
        let device = &gpu.device;
        let unpacker = Unpacker::new(model)?;
        let stream = CudaStream::urgent(device)?;
        let mut memory = Vec::new();
        for i in 0..model.inputs.len() {
            let bytes = unpacker.stride(i).checked_mul(gpu.max_batch);
            let bytes = bytes.ok_or_else(|| device.out_of_memory("taking memory for a batch"))?;
            memory.push(DeviceMemory::new(
                device,
                &stream,
                "taking memory for inputs",
                bytes,
            )?);
        }
        stream.synchronize()?;
        Ok(Inputs {
            device: device.clone(),
            stream,
            unpacker,
            memory,
            pieces: Pieces::default(),
            lists: Lists::default(),
        })
    }

    /// Address of input `index` on the GPU.
    pub fn address(&self, index: usize) -> CUdeviceptr {
        self.memory[index].address()
    }

    /// Enqueues the copies of a batch between the two events. The batch must fit the buffers.
    /// Copies nothing if `at` is given and kernels can read `at` samples of the batch in place.
    pub fn put(
        &mut self,
        batch: &mut Batch,
        at: Option<usize>,
        [before, after]: [&CudaEvent; 2],
    ) -> Result<Staged, EngineError> {
        self.unpacker.check(batch)?;
        before.record(&self.stream)?;
        let staged = self.copy(batch, at)?;
        batch.count_copies(staged.copies, staged.bytes + staged.gathered);
        after.record(&self.stream)?;
        Ok(staged)
    }

    /// Enqueues the writing of `samples` samples of zeros between the two events.
    pub fn put_zeros(
        &mut self,
        samples: usize,
        [before, after]: [&CudaEvent; 2],
    ) -> Result<Staged, EngineError> {
        before.record(&self.stream)?;
        for (i, memory) in self.memory.iter().enumerate() {
            let bytes = self.unpacker.stride(i).saturating_mul(samples);
            memory.clear(&self.device, &self.stream, bytes)?;
        }
        after.record(&self.stream)?;
        Ok(Staged::default())
    }

    /// Waits for the stream. Afterwards, no copy reads a sample's memory.
    pub fn settle(&self) -> Result<(), EngineError> {
        self.stream.synchronize()
    }

    /// Enqueues a copy per run if a sample is one tensor of fixed size; otherwise per tensor of
    /// each sample, after zeros for ragged inputs. Copies nothing if the batch is read in place.
    fn copy(&mut self, batch: &Batch, at: Option<usize>) -> Result<Staged, EngineError> {
        let (unpacker, memory) = (&self.unpacker, &self.memory);
        let to = |input: usize| memory[input].address() as usize;
        let size = unpacker.single_fixed();
        let size = size.filter(|size| batch.sample_bytes() == Some(*size));
        let mut staged = Staged::default();
        let ranges = registry::ranges();
        let list = match size {
            Some(size) => self.pieces.of_runs(batch, size, to(0), &ranges),
            None => {
                let samples = (0..batch.len()).map(|i| (batch.address(i), batch.input_len(i)));
                self.pieces.of_tensors(unpacker, samples, to, &ranges)
            }
        };
        let gpu = self.device.index;
        staged.in_place = size
            .zip(at)
            .and_then(|(size, at)| pieces::in_place(list, &ranges, gpu, size, at));
        drop(ranges);
        if list.iter().any(|p| matches!(p.kind, MemoryKind::Gpu(_))) {
            self.device.fence()?;
            staged.fenced = self.device.direct.fence == Fence::Flush;
        }
        if staged.in_place.is_some() {
            return Ok(staged);
        }
        list.iter().for_each(|p| staged.count(p.kind, p.bytes));
        staged.copies = list.len() as u64;
        let (device, stream) = (&self.device, &self.stream);
        for (i, memory) in memory.iter().enumerate() {
            if unpacker.is_ragged(i) {
                memory.clear(device, stream, unpacker.stride(i) * batch.len())?;
            }
        }
        // SAFETY: the batch keeps its samples readable until the worker has waited for its kernels,
        // which run after this stream. The pieces end within `max_batch` samples of the input
        // buffers, because the batch has at most that many and each tensor fits its sample's room.
        unsafe {
            match pieces::in_one_call(list, device.copies_in_batches) {
                true => self.lists.copy_all(device, stream, list)?,
                false => list.iter().try_for_each(|p| copy_one(device, stream, p))?,
            }
        }
        Ok(staged)
    }
}

/// Arguments of one `cuMemcpyBatchAsync`, reused for every batch.
#[derive(Debug, Default)]
struct Lists {
    to: Vec<CUdeviceptr>,
    from: Vec<CUdeviceptr>,
    bytes: Vec<usize>,
}

/// Copies one piece.
///
/// # Safety
/// The source is readable and the destination writable until the stream has been waited for. The
/// thread is bound to the GPU.
unsafe fn copy_one(device: &Device, stream: &CudaStream, p: &CopyPiece) -> Result<(), EngineError> {
    let to = p.to as CUdeviceptr;
    // SAFETY: guaranteed by the caller. A GPU's memory has the same address on all GPUs.
    let result = unsafe {
        match p.kind {
            MemoryKind::Gpu(_) => {
                sys::cuMemcpyAsync(to, p.from as CUdeviceptr, p.bytes, stream.raw)
            }
            MemoryKind::Registered | MemoryKind::Unregistered => {
                sys::cuMemcpyHtoDAsync_v2(to, p.from as *const _, p.bytes, stream.raw)
            }
        }
    };
    device.check("copying inputs", result)
}

impl Lists {
    /// Copies all pieces with one call. The source of each piece must be registered or a GPU's
    /// memory, and the driver must have the function.
    ///
    /// # Safety
    /// As for [`copy_one`], for each piece.
    unsafe fn copy_all(
        &mut self,
        device: &Device,
        stream: &CudaStream,
        pieces: &[CopyPiece],
    ) -> Result<(), EngineError> {
        self.to.clear();
        self.from.clear();
        self.bytes.clear();
        for p in pieces {
            self.to.push(p.to as CUdeviceptr);
            self.from.push(p.from as CUdeviceptr);
            self.bytes.push(p.bytes);
        }
        // SAFETY: all fields are integers or enumerations for which zero is valid.
        let mut how: sys::CUmemcpyAttributes = unsafe { std::mem::zeroed() };
        how.srcAccessOrder = sys::CUmemcpySrcAccessOrder_enum::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        let mut first = 0;
        // SAFETY: the lists have equal length; the caller guarantees each piece; the one set of
        // attributes holds from the first piece on.
        let result = unsafe {
            sys::cuMemcpyBatchAsync_v2(
                self.to.as_mut_ptr(),
                self.from.as_mut_ptr(),
                self.bytes.as_mut_ptr(),
                pieces.len(),
                &mut how,
                &mut first,
                1,
                stream.raw,
            )
        };
        device.check("copying inputs", result)
    }
}
