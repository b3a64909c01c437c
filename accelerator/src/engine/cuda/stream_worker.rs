//! One worker's place at a GPU: its streams, its buffers, and the way of a batch there and back.
//!
//! ```text
//! copies  event 0 | copies of inputs | event 1       of the highest priority
//! stream                             after event 1 | kernels | event 2 | copy back | event 3
//! ```
//!
//! Zeros behind ragged inputs are written by a kernel of the driver's. At the highest priority it
//! begins while another worker's kernels fill the GPU.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr};
use qdl::model::ModelSpec;

use super::{
    Device, Meter, Registry,
    graph::Graph,
    inputs::{Inputs, Staged},
    memory::{DeviceMemory, Pinned},
    meter::Done,
    stream::{Event, Stream},
};
use crate::engine::{Batch, EngineError, outputs::Outputs};

/// See the module. Made and used on one thread.
pub(in crate::engine) struct StreamWorker {
    device: Arc<Device>,
    meter: Arc<Meter>,
    inputs: Inputs,
    stream: Stream,
    /// Before the copies, before the kernels, after them, after the copy back.
    events: [Event; 4],
    /// Each output of the largest batch, one behind the other.
    landed: Pinned,
    outputs: Outputs,
    max_batch: usize,
    spin_ns: u64,
    /// The kernels of the batch that is on the stream were launched as a graph.
    graph: bool,
}

impl StreamWorker {
    /// Buffers for batches of up to `max_batch` samples of the model. A worker spins for `spin_us`
    /// before it sleeps.
    ///
    /// # Errors
    /// Memory that cannot be had, or the tensor that cannot be served, and why.
    pub fn new(
        device: &Arc<Device>,
        registry: &Arc<Registry>,
        meter: &Arc<Meter>,
        model: &ModelSpec,
        max_batch: usize,
        spin_us: u64,
    ) -> Result<Self, EngineError> {
        device.bind()?;
        let inputs = Inputs::new(device, registry, model, max_batch)?;
        let outputs = Outputs::new(model).map_err(|(tensor, why)| EngineError::Param {
            field: "model",
            reason: format!("tensor `{tensor}` {why}"),
        })?;
        let bytes = model
            .max_output_bytes()
            .and_then(|bytes| bytes.checked_mul(max_batch));
        let bytes = bytes.ok_or_else(|| device.out_of_memory("taking memory for a batch"))?;
        let event = || Event::new(device);
        Ok(StreamWorker {
            inputs,
            stream: Stream::new(device)?,
            events: [event()?, event()?, event()?, event()?],
            landed: Pinned::new(device, bytes)?,
            outputs,
            device: device.clone(),
            meter: meter.clone(),
            max_batch,
            spin_ns: spin_us.saturating_mul(1000),
            graph: false,
        })
    }

    /// The stream's handle, as CUDA's runtime takes it.
    pub fn handle(&self) -> *mut std::ffi::c_void {
        self.stream.raw().cast()
    }

    /// Address of input `index` on the GPU.
    pub fn input(&self, index: usize) -> *mut std::ffi::c_void {
        self.inputs.address(index) as *mut _
    }

    /// More memory on the GPU, zeros, for whoever has outputs of a fixed address.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn memory(&self, bytes: usize) -> Result<DeviceMemory, EngineError> {
        DeviceMemory::new(&self.device, &self.stream, bytes)
    }

    /// Records what `put` puts on the stream.
    ///
    /// # Errors
    /// What `put` says, or the driver.
    pub fn record(
        &self,
        put: impl FnOnce() -> Result<(), EngineError>,
    ) -> Result<Graph, EngineError> {
        Graph::record(&self.device, &self.stream, put)
    }

    /// Puts what was recorded on the stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&mut self, graph: &Graph) -> Result<(), EngineError> {
        self.graph = true;
        graph.launch(&self.stream)
    }

    /// Most samples of a batch.
    pub fn max_batch(&self) -> usize {
        self.max_batch
    }

    /// Puts the copies of a batch's inputs on their stream, and has the kernels' go on after them.
    /// Returns at once; the samples stay where they are until [`StreamWorker::finish`] or
    /// [`StreamWorker::settle`].
    ///
    /// # Errors
    /// A sample of a wrong length, a batch that is too large, or the driver's.
    pub fn stage(&mut self, batch: &mut Batch) -> Result<Staged, EngineError> {
        self.stage_with(batch, None)
    }

    /// The same; where the batch, run at `at` samples, can be read where it landed on the GPU,
    /// nothing is copied, and [`Staged::in_place`] says where it lies.
    ///
    /// # Errors
    /// As [`StreamWorker::stage`].
    pub fn stage_in_place(&mut self, batch: &mut Batch, at: usize) -> Result<Staged, EngineError> {
        self.stage_with(batch, Some(at))
    }

    fn stage_with(&mut self, batch: &mut Batch, at: Option<usize>) -> Result<Staged, EngineError> {
        if batch.len() > self.max_batch {
            return Err(EngineError::Run {
                engine: "cuda",
                batch: batch.len(),
                reason: format!("buffers are for {} samples", self.max_batch),
            });
        }
        let [before, after, ..] = &self.events;
        let staged = self.inputs.put(batch, at, [before, after])?;
        self.stream.after(after)?;
        Ok(staged)
    }

    /// For warming up: `samples` samples of zeros, at most as many as the largest batch.
    ///
    /// # Errors
    /// The driver's.
    pub fn stage_zeros(&mut self, samples: usize) -> Result<Staged, EngineError> {
        let [before, after, ..] = &self.events;
        let staged = self.inputs.put_zeros(samples, [before, after])?;
        self.stream.after(after)?;
        Ok(staged)
    }

    /// After the kernels: copies what `outputs`, the model's in their order, say of the first
    /// `samples` back from the GPU, waits for all of it, and gives each sample's response to
    /// `each`. `ran` is the size the kernels ran at.
    ///
    /// # Errors
    /// The driver's; an error of a copy or a kernel comes to light here. And what `each` says.
    ///
    /// # Safety
    /// Each of `outputs` holds that output of `samples` samples on this GPU once the kernels on the
    /// stream are done, and until this returns.
    pub unsafe fn finish(
        &mut self,
        staged: Staged,
        (samples, ran): (usize, usize),
        outputs: &[*const std::ffi::c_void],
        each: impl FnMut(usize, &[u8]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let graph = std::mem::take(&mut self.graph);
        self.events[2].record(&self.stream)?;
        let samples = samples.min(self.max_batch);
        let mut bytes = 0;
        for (output, width) in outputs.iter().zip(self.outputs.widths()) {
            let own = samples * width;
            if own == 0 {
                continue;
            }
            // SAFETY: the pinned buffer has room for each output of `max_batch` samples, one behind
            // the other, so for those of fewer as well; the source is the caller's promise.
            let result = unsafe {
                sys::cuMemcpyDtoHAsync_v2(
                    self.landed.address().as_ptr().add(bytes).cast(),
                    *output as CUdeviceptr,
                    own,
                    self.stream.raw(),
                )
            };
            self.device.check("copying outputs", result)?;
            bytes += own;
        }
        self.events[3].record(&self.stream)?;
        self.events[3].wait(self.spin_ns)?;
        let [start, copied, computed, back] = &self.events;
        // Warming up is no batch.
        if samples > 0 {
            self.meter.batch(&Done {
                samples,
                padded: ran.saturating_sub(samples),
                copies_in: staged.copies,
                bytes_in: staged.bytes,
                gathered: staged.gathered,
                in_place: staged.in_place().is_some(),
                fenced: staged.fenced,
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
        // SAFETY: the event behind the copies has passed, and the next copy is put on the stream by
        // `&mut self`.
        let landed = unsafe { landed.bytes(bytes) };
        let from = |_, before| landed.get(before * samples..).unwrap_or_default();
        outputs.split(samples, from, each)
    }

    /// After an error: nothing reads a sample's memory any more when this returns.
    pub fn settle(&self) {
        // The error that matters has been seen.
        let _ = self.inputs.settle();
        let _ = self.stream.synchronize();
    }
}

impl Drop for StreamWorker {
    fn drop(&mut self) {
        let _ = self.device.bind();
        self.settle();
    }
}
