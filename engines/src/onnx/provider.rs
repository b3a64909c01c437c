//! Runs batches with ONNX Runtime's CUDA provider: each worker has a session on its own stream.

use std::{borrow::Cow, sync::Arc};

use ort::{
    ep::{self, cuda::ConvAlgorithmSearch},
    memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType},
    session::{OutputSelector, RunOptions, Session, SessionInputValue},
    value::{DynTensor, DynTensorRef, Shape, TensorElementType},
};
use qdl::model::{DType, ModelSpec, TensorSpec};

use super::session::{SessionCfgs, check_output, view};
use crate::{
    Batch, EngineError, Worker,
    cuda::{Gpu, Staged, StreamWorker},
    one_line,
};

/// ONNX Runtime's description of the memory of GPU `index`.
pub(crate) fn gpu_memory(index: i32) -> Result<MemoryInfo<'static>, EngineError> {
    let (device, kind) = (AllocatorType::Device, MemoryType::Default);
    MemoryInfo::new(AllocationDevice::CUDA, index, device, kind).map_err(EngineError::provider)
}

/// A worker on a GPU. The session is declared before its stream, so dropped before it.
pub(super) struct OnGpu {
    /// Declared before the session, so dropped before it.
    allocator: Allocator,
    session: Session,
    stream: StreamWorker,
    memory: MemoryInfo<'static>,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    /// The model's batch size, if it is fixed.
    fixed: Option<usize>,
}

impl OnGpu {
    /// Makes a worker on the calling thread. `fixed`: the model's fixed batch size.
    pub fn new(
        model: &ModelSpec,
        fixed: Option<usize>,
        settings: &SessionCfgs,
        gpu: &Arc<Gpu>,
    ) -> Result<Self, EngineError> {
        let stream = StreamWorker::new(gpu, model)?;
        let index = i32::try_from(gpu.device.index).unwrap_or(i32::MAX);
        let provider = ep::CUDA::default()
            .with_device_id(index)
            // The other searches try every convolution algorithm for each new batch size.
            .with_conv_algorithm_search(ConvAlgorithmSearch::Heuristic);
        // SAFETY: the stream belongs to the stream worker, which is dropped after the session.
        let provider = unsafe { provider.with_compute_stream(stream.handle().cast()) };
        let session = settings.open(&[provider.build().error_on_failure()])?;
        let memory = gpu_memory(index)?;
        let allocator = Allocator::new(&session, memory.clone());
        Ok(OnGpu {
            allocator: allocator.map_err(EngineError::provider)?,
            session,
            stream,
            memory,
            inputs: model.inputs.clone(),
            outputs: model.outputs().cloned().collect(),
            fixed,
        })
    }

    /// Runs the staged batch at `ran` samples, and passes the responses of the first `samples` to
    /// `each`. A warm-up has 0 `samples`.
    fn infer(
        &mut self,
        staged: Staged,
        samples: usize,
        ran: usize,
        each: impl FnMut(usize, &[u8]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let failed = |reason: String| EngineError::run("onnx", ran, reason);
        let said = |e: ort::Error| failed(one_line(&e.to_string()));
        let mut inputs: Inputs<'_> = Vec::with_capacity(self.inputs.len());
        for (i, spec) in self.inputs.iter().enumerate() {
            let address = self.stream.input(i).cast();
            // SAFETY: the stream worker's input holds `max_batch >= ran` samples on this GPU.
            // Copies write it, and the stream waits for them before the session's kernels.
            let view = unsafe { view(&self.memory, spec, ran, address) }.map_err(said)?;
            inputs.push((Cow::Borrowed(&*spec.name), view));
        }
        let Self {
            session,
            stream,
            allocator,
            outputs,
            ..
        } = self;
        // SAFETY: the outputs are in this GPU's memory, have the model's shapes for `ran` samples,
        // and live until the closure returns; the session enqueued its kernels on the stream
        // worker's stream.
        let finish = |data: &[_]| unsafe { stream.finish(staged, (samples, ran), data, each) };
        run_into(session, inputs, allocator, outputs, ran, finish).map_err(failed)?
    }
}

type Inputs<'v> = Vec<(Cow<'v, str>, SessionInputValue<'v>)>;

/// Runs a batch with outputs in the allocator's memory, and calls `done` with the addresses while
/// the outputs live. The inputs have no binding, because a binding would copy borrowed memory.
fn run_into<R>(
    session: &mut Session,
    inputs: Inputs<'_>,
    allocator: &Allocator,
    specs: &[TensorSpec],
    batch: usize,
    done: impl FnOnce(&[*const std::ffi::c_void]) -> R,
) -> Result<R, String> {
    let said = |e: ort::Error| one_line(&e.to_string());
    let mut into = OutputSelector::no_default();
    for spec in specs {
        let shape: Shape = std::iter::once(batch)
            .chain(spec.shape.iter().copied())
            .collect();
        let tensor = DynTensor::new(allocator, element(spec.dtype), shape).map_err(said)?;
        into = into.with(&*spec.name).preallocate(&*spec.name, tensor);
    }
    let options = RunOptions::new().map_err(said)?.with_outputs(into);
    let outputs = session.run_with_options(inputs, &options).map_err(said)?;
    let mut addresses = Vec::with_capacity(specs.len());
    for spec in specs {
        let output: DynTensorRef<'_> = outputs
            .get(&spec.name)
            .and_then(|v| v.view().downcast().ok())
            .ok_or_else(|| format!("no tensor `{}` came out", spec.name))?;
        check_output(&output, spec, batch)?;
        addresses.push(output.data_ptr().cast());
    }
    Ok(done(&addresses))
}

fn element(dtype: DType) -> TensorElementType {
    match dtype {
        DType::U8 => TensorElementType::Uint8,
        DType::I8 => TensorElementType::Int8,
        DType::I32 => TensorElementType::Int32,
        DType::I64 => TensorElementType::Int64,
        DType::F16 => TensorElementType::Float16,
        DType::Bf16 => TensorElementType::Bfloat16,
        DType::F32 => TensorElementType::Float32,
    }
}

impl Worker for OnGpu {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        let n = batch.len();
        // Samples after the first `n` are old data or zeros; `finish` discards their outputs.
        let at = self.fixed.unwrap_or(n);
        let staged = self.stream.stage(batch, None);
        let result = staged
            .and_then(|staged| self.infer(staged, n, at, |i, response| batch.write(i, response)));
        if result.is_err() {
            self.stream.settle();
        }
        result
    }

    fn warm_up(&mut self, batch: usize) -> Result<(), EngineError> {
        let ran = self.fixed.unwrap_or(batch).min(self.stream.max_batch());
        let staged = self.stream.stage_zeros(ran)?;
        self.infer(staged, 0, ran, |_, _| Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        EngineKind, EngineParams,
        onnx::{library, spec},
    };

    /// Runs on the CPU's memory. Each output is where the allocator put it, in the requested order.
    #[test]
    fn a_batch_is_run_into_memory_of_the_allocators() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/detect.onnx");
        library::load(None).unwrap_or_else(|e| panic!("{e}"));
        let settings = SessionCfgs {
            path: path.clone(),
            intra_threads: 1,
        };
        let mut session = settings.open(&[]).unwrap_or_else(|e| panic!("{e}"));
        let read = spec::read(&session, &EngineParams::new(EngineKind::Onnx), &path);
        let model = read.unwrap_or_else(|e| panic!("{e}")).model;
        let memory = MemoryInfo::default();
        let allocator = Allocator::new(&session, memory.clone()).expect("the CPU's");
        let (mut pixels, mut bias) = ([9u8, 1, 2, 3, 4, 5, 90, 7], [0.5f32, -1.0]);
        let addresses = [pixels.as_mut_ptr(), bias.as_mut_ptr().cast()];
        let inputs = |batch| -> Inputs<'_> {
            let inputs = model.inputs.iter().zip(addresses).map(|(spec, address)| {
                // SAFETY: pixels and biases hold two samples and outlive the run.
                let view = unsafe { view(&memory, spec, batch, address) }.expect("a view");
                (Cow::Borrowed(&*spec.name), view)
            });
            inputs.collect()
        };
        let mut outputs: Vec<TensorSpec> = model.outputs().cloned().collect();
        // Scores, class, boxes: not in the order of the file.
        outputs.reverse();
        // The larger batch, the smaller one, and the larger one again.
        for batch in [2usize, 1, 2] {
            let got = run_into(
                &mut session,
                inputs(batch),
                &allocator,
                &outputs,
                batch,
                |data| {
                    // SAFETY: while the closure runs, each sample has 4 scores and a class.
                    let (scores, classes) = unsafe {
                        (
                            std::slice::from_raw_parts(data[0].cast::<f32>(), 4 * batch),
                            std::slice::from_raw_parts(data[1].cast::<i64>(), batch),
                        )
                    };
                    (scores.to_vec(), classes.to_vec())
                },
            );
            let (scores, classes) = got.unwrap_or_else(|e| panic!("{e}"));
            let right = [9.5, 1.5, 2.5, 3.5, 3.0, 4.0, 89.0, 6.0];
            assert_eq!(scores, right[..4 * batch]);
            assert_eq!(classes, [0, 2][..batch]);
        }
        outputs[0].shape = vec![2];
        run_into(&mut session, inputs(1), &allocator, &outputs, 1, |_| ())
            .expect_err("an output of another shape is refused");
    }
}
