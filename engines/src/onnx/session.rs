//! Loads and runs one worker's session: on the CPU, or with the CUDA provider on its stream.

use std::{borrow::Cow, ffi::c_void, path::PathBuf};

use crate::config::Provider;
use ort::{
    ep::{self, ExecutionProviderDispatch, cuda::ConvAlgorithmSearch},
    memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType},
    session::{
        HasSelectedOutputs, OutputSelector, RunOptions, Session, SessionInputValue,
        builder::GraphOptimizationLevel,
    },
    value::{DynTensor, DynTensorRef, Shape, TensorElementType, TensorRefMut},
};
use qdl::model::{DType, ModelSpec, TensorSpec};

use super::library;
use crate::{
    EngineError, EngineParams, cuda::StreamWorker, one_line, onnx_data_files, open_model,
    workers::BatchModel,
};

#[derive(Debug)]
pub(crate) struct SessionCfgs {
    pub path: PathBuf,
    pub intra_threads: usize,
}

impl SessionCfgs {
    /// Opens ONNX Runtime, and checks the model file and the provider.
    /// Error: the library, its provider or the model file is missing; the error has the path.
    pub fn find(params: &EngineParams) -> Result<Self, EngineError> {
        let path = params.model_file()?;
        // For a missing file, the system's error is clearer than ONNX Runtime's.
        open_model(&path, "")?;
        for weights in onnx_data_files(&path).iter().filter(|file| file.exists()) {
            open_model(weights, "")?;
        }
        library::load(params.engine.library.as_deref())?;
        if params.engine.provider == Provider::Cuda {
            library::check_cuda()?;
        }
        Ok(SessionCfgs {
            path,
            intra_threads: params.engine.intra_threads,
        })
    }

    /// Loads the model into a session with these execution providers. The library must be open.
    pub fn open(&self, providers: &[ExecutionProviderDispatch]) -> Result<Session, EngineError> {
        let environment = library::load(None)?;
        let invalid = |reason: String| {
            let reason = format!("not a model that ONNX Runtime can load ({reason})");
            EngineError::model(&self.path, reason)
        };
        let builder = || -> ort::Result<_> {
            let builder = Session::builder(&environment)?
                .with_optimization_level(GraphOptimizationLevel::Level3)?
                .with_intra_threads(self.intra_threads)?;
            // Spinning threads would take the cores of the NIC threads.
            Ok(builder.with_intra_op_spinning(false)?)
        };
        let builder = builder().map_err(|e| invalid(e.to_string()))?;
        let mut builder = builder
            .with_execution_providers(providers)
            .map_err(EngineError::provider)?;
        let loaded = builder.commit_from_file(&self.path);
        loaded.map_err(|e| invalid(e.to_string()))
    }
}

/// ONNX Runtime's description of the memory of GPU `index`.
pub(crate) fn gpu_memory(index: i32) -> Result<MemoryInfo<'static>, EngineError> {
    let (device, kind) = (AllocatorType::Device, MemoryType::Default);
    MemoryInfo::new(AllocationDevice::CUDA, index, device, kind).map_err(EngineError::provider)
}

/// A session for one worker.
pub(super) struct Runner {
    /// On a GPU, the allocator of the outputs. Declared before the session, so dropped before it.
    allocator: Option<Allocator>,
    session: Session,
    memory: MemoryInfo<'static>,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    /// The model's batch size, if it is fixed.
    fixed: Option<usize>,
    /// Selects the configured outputs: nodes that only other outputs need do not run.
    asked: RunOptions<HasSelectedOutputs>,
}

impl Runner {
    /// A runner of `session`, with inputs in `memory` and outputs in memory of `allocator`, else of
    /// the session's own. `fixed`: the model's fixed batch size.
    fn new(
        model: &ModelSpec,
        fixed: Option<usize>,
        session: Session,
        memory: MemoryInfo<'static>,
        allocator: Option<Allocator>,
    ) -> ort::Result<Self> {
        let wanted = model.outputs();
        let wanted = wanted.fold(OutputSelector::no_default(), |all, t| all.with(&*t.name));
        Ok(Runner {
            allocator,
            session,
            memory,
            inputs: model.inputs.clone(),
            outputs: model.outputs().cloned().collect(),
            fixed,
            asked: RunOptions::new()?.with_outputs(wanted),
        })
    }

    /// Loads a session on the CPU.
    pub fn on_cpu(
        model: &ModelSpec,
        fixed: Option<usize>,
        settings: &SessionCfgs,
    ) -> Result<Self, EngineError> {
        let session = settings.open(&[])?;
        let made = Self::new(model, fixed, session, MemoryInfo::default(), None);
        made.map_err(|e| EngineError::model(&settings.path, e))
    }

    /// Loads a session on the GPU `index`, whose kernels run on `stream`. The worker drops its
    /// stream after the session.
    pub fn on_gpu(
        model: &ModelSpec,
        fixed: Option<usize>,
        settings: &SessionCfgs,
        (index, stream): (usize, &StreamWorker),
    ) -> Result<Self, EngineError> {
        let index = i32::try_from(index).unwrap_or(i32::MAX);
        let provider = ep::CUDA::default()
            .with_device_id(index)
            // The other searches try every convolution algorithm for each new batch size.
            .with_conv_algorithm_search(ConvAlgorithmSearch::Heuristic);
        // SAFETY: `GpuWorker` drops the stream after its model, which has the session.
        let provider = unsafe { provider.with_compute_stream(stream.handle().cast()) };
        let session = settings.open(&[provider.build().error_on_failure()])?;
        let memory = gpu_memory(index)?;
        let allocator = Allocator::new(&session, memory.clone());
        let allocator = allocator.map_err(EngineError::provider)?;
        let made = Self::new(model, fixed, session, memory, Some(allocator));
        made.map_err(EngineError::provider)
    }
}

impl<S> BatchModel<S> for Runner {
    fn run_at(&self, n: usize) -> Result<usize, EngineError> {
        Ok(self.fixed.unwrap_or(n))
    }

    unsafe fn run(
        &mut self,
        stream: &mut S,
        inputs: &[*mut c_void],
        at: usize,
        done: impl FnOnce(&mut S, &[*const c_void]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let failed = |reason: String| EngineError::run("onnx", at, reason);
        let said = |e: ort::Error| failed(one_line(&e.to_string()));
        let mut views: Vec<(Cow<'_, str>, SessionInputValue<'_>)> =
            Vec::with_capacity(inputs.len());
        for (spec, address) in self.inputs.iter().zip(inputs) {
            // SAFETY: guaranteed by the caller.
            let view = unsafe { view(&self.memory, spec, at, address.cast()) }.map_err(said)?;
            views.push((Cow::Borrowed(&*spec.name), view));
        }
        let preallocated;
        let options = match &self.allocator {
            None => &self.asked,
            Some(allocator) => {
                preallocated = outputs_in(allocator, &self.outputs, at).map_err(said)?;
                &preallocated
            }
        };
        let got = self
            .session
            .run_with_options(views, options)
            .map_err(said)?;
        let mut addresses = Vec::with_capacity(self.outputs.len());
        for spec in &self.outputs {
            let output: DynTensorRef<'_> = got
                .get(&spec.name)
                .and_then(|v| v.view().downcast().ok())
                .ok_or_else(|| failed(format!("no tensor `{}` came out", spec.name)))?;
            check_output(&output, spec, at).map_err(failed)?;
            addresses.push(output.data_ptr().cast());
        }
        done(stream, &addresses)
    }
}

/// Options of a run that puts the outputs into the allocator's memory. Inputs have no binding,
/// because a binding would copy borrowed memory.
fn outputs_in(
    allocator: &Allocator,
    specs: &[TensorSpec],
    batch: usize,
) -> ort::Result<RunOptions<HasSelectedOutputs>> {
    let mut into = OutputSelector::no_default();
    for spec in specs {
        let shape: Shape = std::iter::once(batch)
            .chain(spec.shape.iter().copied())
            .collect();
        let tensor = DynTensor::new(allocator, element(spec.dtype), shape)?;
        into = into.with(&*spec.name).preallocate(&*spec.name, tensor);
    }
    Ok(RunOptions::new()?.with_outputs(into))
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

/// Compares an output of `batch` samples with its spec; the error describes the difference.
fn check_output(output: &DynTensorRef<'_>, spec: &TensorSpec, batch: usize) -> Result<(), String> {
    let shape = output.shape();
    let right = super::spec::dtype(*output.data_type()) == Some(spec.dtype)
        && shape.len() == spec.shape.len() + 1
        && shape[0] == batch as i64
        && shape[1..]
            .iter()
            .zip(&spec.shape)
            .all(|(a, b)| *a == *b as i64);
    if right {
        return Ok(());
    }
    Err(format!(
        "output `{}` came as {}{shape:?} for a batch of {batch} times {spec}",
        spec.name,
        output.data_type()
    ))
}

/// Wraps memory as a tensor of `batch` samples, without a copy.
///
/// # Safety
/// `address` must be readable for `batch` samples of `spec`, aligned for its elements, and
/// unchanged while the value lives. The session only reads its inputs.
unsafe fn view<'v>(
    memory: &MemoryInfo<'static>,
    spec: &TensorSpec,
    batch: usize,
    address: *mut u8,
) -> ort::Result<SessionInputValue<'v>> {
    let shape: Shape = std::iter::once(batch)
        .chain(spec.shape.iter().copied())
        .collect();
    let (memory, address) = (memory.clone(), address.cast::<c_void>());
    macro_rules! as_type {
        ($t:ty) => {
            // SAFETY: guaranteed by the caller, for elements of this type.
            unsafe { TensorRefMut::<$t>::from_raw(memory, address, shape) }.map(Into::into)
        };
    }
    match spec.dtype {
        DType::U8 => as_type!(u8),
        DType::I8 => as_type!(i8),
        DType::I32 => as_type!(i32),
        DType::I64 => as_type!(i64),
        DType::F32 => as_type!(f32),
        DType::F16 | DType::Bf16 => Err(ort::Error::new(format!(
            "elements of type {} cannot be handed over",
            spec.dtype
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{EngineKind, onnx::spec};

    /// Runs on the CPU's memory. Each output is where the allocator put it, in the requested order.
    #[test]
    fn a_batch_is_run_into_memory_of_the_allocators() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/detect.onnx");
        library::load(None).unwrap_or_else(|e| panic!("{e}"));
        let settings = SessionCfgs {
            path: path.clone(),
            intra_threads: 1,
        };
        let session = settings.open(&[]).unwrap_or_else(|e| panic!("{e}"));
        let read = spec::read(&session, &EngineParams::new(EngineKind::Onnx), &path);
        let mut model = read.unwrap_or_else(|e| panic!("{e}")).model;
        // Scores, class, boxes: not in the order of the file.
        std::mem::swap(&mut model.output, &mut model.other_outputs[1]);
        let memory = MemoryInfo::default();
        let allocator = Allocator::new(&session, memory.clone()).expect("the CPU's");
        let runner = Runner::new(&model, None, session, memory, Some(allocator));
        let mut runner = runner.unwrap_or_else(|e| panic!("{e}"));
        let (mut pixels, mut bias) = ([9u8, 1, 2, 3, 4, 5, 90, 7], [0.5f32, -1.0]);
        let addresses = [pixels.as_mut_ptr().cast(), bias.as_mut_ptr().cast()];
        // The larger batch, the smaller one, and the larger one again.
        for batch in [2usize, 1, 2] {
            let (mut scores, mut classes) = (Vec::<f32>::new(), Vec::<i64>::new());
            let done = |(): &mut (), data: &[*const c_void]| {
                // SAFETY: while the closure runs, each sample has 4 scores and a class.
                unsafe {
                    scores.extend(std::slice::from_raw_parts(data[0].cast::<f32>(), 4 * batch));
                    classes.extend(std::slice::from_raw_parts(data[1].cast::<i64>(), batch));
                }
                Ok(())
            };
            // SAFETY: pixels and biases hold two samples and outlive the run.
            let ran = unsafe { runner.run(&mut (), &addresses, batch, done) };
            ran.unwrap_or_else(|e| panic!("{e}"));
            let right = [9.5f32, 1.5, 2.5, 3.5, 3.0, 4.0, 89.0, 6.0];
            assert_eq!(scores, right[..4 * batch]);
            assert_eq!(classes, [0i64, 2][..batch]);
        }
        runner.outputs[0].shape = vec![2];
        // SAFETY: as above.
        let ran = unsafe { runner.run(&mut (), &addresses, 1, |(), _| Ok(())) };
        ran.expect_err("an output of another shape is refused");
    }
}
