//! Runs the batches of one worker on a GPU, with the worker's streams and buffers.
//!
//! ```text
//! copies  event 0 | copies of inputs | event 1       highest priority
//! stream                             after event 1 | kernels | event 2 | copy back | event 3
//! ```
//!
//! A kernel of the driver writes the zeros after ragged inputs. With the highest priority, this
//! kernel starts even while another worker's kernels fill the GPU.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr};
use qdl::model::ModelSpec;

use super::{
    Gpu,
    gpu::{BatchRun, Staged},
    inputs::Inputs,
    memory::{DeviceMemory, Pinned},
    stream::{CudaEvent, CudaStream, KernelGraph},
};
use crate::{Batch, EngineError, batch::Outputs};

/// Streams and buffers of one worker. The worker's thread makes and uses them.
pub(crate) struct StreamWorker {
    gpu: Arc<Gpu>,
    inputs: Inputs,
    stream: CudaStream,
    /// Events before the copies, before the kernels, after the kernels, after the copy back.
    events: [CudaEvent; 4],
    /// Pinned memory for all outputs of the largest batch, one output after the other.
    landed: Pinned,
    outputs: Outputs,
    /// True if the kernels of the current batch were launched as a graph.
    graph: bool,
}

impl StreamWorker {
    /// Binds this thread to `gpu` and allocates buffers for the largest batch.
    pub fn new(gpu: &Arc<Gpu>, model: &ModelSpec) -> Result<Self, EngineError> {
        let device = &gpu.device;
        device.bind()?;
        let inputs = Inputs::new(gpu, model)?;
        let outputs = Outputs::new(model)?;
        let bytes = model
            .max_output_bytes()
            .and_then(|bytes| bytes.checked_mul(gpu.max_batch));
        let bytes = bytes.ok_or_else(|| device.out_of_memory("taking memory for a batch"))?;
        let event = || CudaEvent::new(device);
        Ok(StreamWorker {
            inputs,
            stream: CudaStream::new(device)?,
            events: [event()?, event()?, event()?, event()?],
            landed: Pinned::new(device, bytes)?,
            outputs,
            gpu: gpu.clone(),
            graph: false,
        })
    }

    /// The handle of the kernel stream, for CUDA's runtime.
    pub fn handle(&self) -> *mut std::ffi::c_void {
        self.stream.raw.cast()
    }

    /// Address of input `index` on the GPU.
    pub fn input(&self, index: usize) -> *mut std::ffi::c_void {
        self.inputs.address(index) as *mut _
    }

    /// Allocates zeroed GPU memory, for outputs at a fixed address.
    pub fn memory(&self, bytes: usize) -> Result<DeviceMemory, EngineError> {
        let verb = "taking memory for outputs";
        DeviceMemory::new(&self.gpu.device, &self.stream, verb, bytes)
    }

    /// Records the work that `put` enqueues on the kernel stream, without running it.
    pub fn record(
        &self,
        put: impl FnOnce() -> Result<(), EngineError>,
    ) -> Result<KernelGraph, EngineError> {
        KernelGraph::record(&self.gpu.device, &self.stream, put)
    }

    pub fn launch(&mut self, graph: &KernelGraph) -> Result<(), EngineError> {
        self.graph = true;
        graph.launch(&self.stream)
    }

    pub fn max_batch(&self) -> usize {
        self.gpu.max_batch
    }

    /// Enqueues the copies of a batch's inputs and lets the kernel stream wait for them. Returns at
    /// once; the samples must stay in place until [`StreamWorker::finish`] or
    /// [`StreamWorker::settle`]. Copies nothing if `at` is given and kernels can read `at` samples
    /// of the batch in place: then [`Staged::in_place`] has the batch's address.
    /// Error: a sample of a wrong length, a batch that is too large, or the driver's error.
    pub fn stage(&mut self, batch: &mut Batch, at: Option<usize>) -> Result<Staged, EngineError> {
        if batch.len() > self.max_batch() {
            return Err(EngineError::run(
                "cuda",
                batch.len(),
                format!("buffers are for {} samples", self.max_batch()),
            ));
        }
        let [before, after, ..] = &self.events;
        let staged = self.inputs.put(batch, at, [before, after])?;
        self.stream.after(after)?;
        Ok(staged)
    }

    /// Stages `samples` samples of zeros for a warm-up, at most the largest batch.
    pub fn stage_zeros(&mut self, samples: usize) -> Result<Staged, EngineError> {
        let [before, after, ..] = &self.events;
        let staged = self.inputs.put_zeros(samples, [before, after])?;
        self.stream.after(after)?;
        Ok(staged)
    }

    /// Copies `outputs` (in the model's order) of the first `samples` samples from the GPU after
    /// the kernels, waits, and passes each response to `each`. `ran` is the kernels' batch size.
    /// Error: the driver's error, also for an earlier copy or kernel; the error of `each`.
    ///
    /// # Safety
    /// Each of `outputs` holds that output of `samples` samples on this GPU, from the end of the
    /// stream's kernels until this function returns.
    pub unsafe fn finish(
        &mut self,
        staged: Staged,
        (samples, ran): (usize, usize),
        outputs: &[*const std::ffi::c_void],
        each: impl FnMut(usize, &[u8]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let graph = std::mem::take(&mut self.graph);
        self.events[2].record(&self.stream)?;
        let samples = samples.min(self.max_batch());
        let mut bytes = 0;
        for (output, width) in outputs.iter().zip(&self.outputs.widths) {
            let own = samples * width;
            if own == 0 {
                continue;
            }
            // SAFETY: the pinned buffer has room for all outputs of `max_batch` samples one after
            // the other, so also for fewer; the caller guarantees the source.
            let result = unsafe {
                sys::cuMemcpyDtoHAsync_v2(
                    self.landed.address().as_ptr().add(bytes).cast(),
                    *output as CUdeviceptr,
                    own,
                    self.stream.raw,
                )
            };
            self.gpu.device.check("copying outputs", result)?;
            bytes += own;
        }
        self.events[3].record(&self.stream)?;
        self.events[3].wait(self.gpu.spin_ns)?;
        let [start, copied, computed, back] = &self.events;
        // A warm-up does not count as a batch.
        if samples > 0 {
            self.gpu.count(&BatchRun {
                samples,
                padded: ran.saturating_sub(samples),
                staged,
                graph,
                bytes_out: bytes as u64,
                copy_in: start.until(copied),
                compute: copied.until(computed),
                copy_out: computed.until(back),
            });
        }
        let Self {
            landed, outputs, ..
        } = self;
        // SAFETY: the event after the copies has passed; only `&mut self` can start a copy.
        let landed = unsafe { landed.bytes(bytes) };
        let from = |_, before| landed.get(before * samples..).unwrap_or_default();
        outputs.split(samples, from, each)
    }

    /// Waits for both streams after an error. Afterwards, no copy or kernel reads a sample.
    pub fn settle(&self) {
        // The caller already has the first error.
        let _ = self.inputs.settle();
        let _ = self.stream.synchronize();
    }
}

impl Drop for StreamWorker {
    fn drop(&mut self) {
        let _ = self.gpu.device.bind();
        self.settle();
    }
}
