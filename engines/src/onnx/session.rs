//! Runs one worker's session on the CPU: reads a batch of one run in place, others from a buffer.

use std::{borrow::Cow, ffi::c_void, path::PathBuf};

use crate::config::Provider;
use ort::{
    ep::ExecutionProviderDispatch,
    memory::MemoryInfo,
    session::{
        HasSelectedOutputs, OutputSelector, RunOptions, Session, SessionInputValue,
        builder::GraphOptimizationLevel,
    },
    value::{DynTensorRef, Shape, TensorRefMut},
};
use qdl::model::{DType, ModelSpec, TensorSpec};

use super::library;
use crate::{
    Batch, EngineError, EngineParams, Worker,
    batch::{Outputs, Unpacker},
    onnx_data_files, open_model,
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

pub(super) struct OnCpu {
    session: Session,
    memory: MemoryInfo<'static>,
    unpacker: Unpacker,
    inputs: Vec<TensorSpec>,
    specs: Vec<TensorSpec>,
    outputs: Outputs,
    /// The model's batch size, if it is fixed.
    fixed: Option<usize>,
    /// Selects the configured outputs: nodes that only other outputs need do not run.
    asked: RunOptions<HasSelectedOutputs>,
}

impl OnCpu {
    /// Makes a worker on the calling thread. `fixed`: the model's fixed batch size.
    pub fn new(
        model: &ModelSpec,
        fixed: Option<usize>,
        settings: &SessionCfgs,
    ) -> Result<Self, EngineError> {
        let wanted = model.outputs();
        let wanted = wanted.fold(OutputSelector::no_default(), |all, t| all.with(&*t.name));
        let asked = RunOptions::new().map_err(|e| EngineError::model(&settings.path, e))?;
        Ok(OnCpu {
            asked: asked.with_outputs(wanted),
            session: settings.open(&[])?,
            memory: MemoryInfo::default(),
            unpacker: Unpacker::new(model)?,
            inputs: model.inputs.clone(),
            specs: model.outputs().cloned().collect(),
            outputs: Outputs::new(model)?,
            fixed,
        })
    }

    fn run_at(&self, n: usize) -> usize {
        self.fixed.unwrap_or(n)
    }

    /// Runs `batch` samples and passes the responses of the first `samples` to `each`. `in_place`
    /// is the address of the samples; `None` if they are in the unpacker's buffers.
    ///
    /// # Safety
    /// `in_place` must be readable for `batch` samples of the model's only input.
    unsafe fn infer(
        &mut self,
        samples: usize,
        batch: usize,
        in_place: Option<*const u8>,
        each: impl FnMut(usize, &[u8]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let failed = |reason: String| EngineError::run("onnx", batch, reason);
        let mut inputs: Vec<(Cow<'_, str>, SessionInputValue<'_>)> =
            Vec::with_capacity(self.inputs.len());
        for (i, spec) in self.inputs.iter().enumerate() {
            let address = match in_place {
                Some(address) => address.cast_mut(),
                None => self.unpacker.buffer(i),
            };
            // SAFETY: `address` holds `batch` samples of this input: guaranteed by the caller, or
            // the unpacker's buffer, which was grown for the batch and stays unchanged until the
            // run has returned.
            let view = unsafe { view(&self.memory, spec, batch, address) }
                .map_err(|e| failed(e.to_string()))?;
            inputs.push((Cow::Borrowed(&*spec.name), view));
        }
        let got = self
            .session
            .run_with_options(inputs, &self.asked)
            .map_err(|e| failed(e.to_string()))?;
        let mut tensors = Vec::with_capacity(self.specs.len());
        for (spec, width) in self.specs.iter().zip(&self.outputs.widths) {
            let output: DynTensorRef<'_> = got
                .get(&spec.name)
                .and_then(|v| v.view().downcast().ok())
                .ok_or_else(|| failed(format!("no tensor `{}` came out", spec.name)))?;
            check_output(&output, spec, batch).map_err(failed)?;
            let bytes: &[u8] = match batch * width {
                0 => &[],
                // SAFETY: the tensor is in memory of the CPU provider, the only provider. Shape and
                // element type were just checked, so it holds `bytes` bytes, and `got` keeps them
                // while the slice lives.
                bytes => unsafe {
                    std::slice::from_raw_parts(output.data_ptr().cast::<u8>(), bytes)
                },
            };
            tensors.push(bytes);
        }
        self.outputs.split(samples, |o, _| tensors[o], each)
    }
}

impl Worker for OnCpu {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        let (n, at) = (batch.len(), self.run_at(batch.len()));
        let in_place = self.unpacker.put(batch, at)?;
        // SAFETY: `in_place` is the address of a run that holds the whole batch, with samples of
        // the model's size; the batch keeps them readable until this function returns.
        unsafe { self.infer(n, at, in_place, |i, response| batch.write(i, response)) }
    }

    fn warm_up(&mut self, batch: usize) -> Result<(), EngineError> {
        let at = self.run_at(batch);
        self.unpacker.clear(at);
        // SAFETY: no address is given, so the run reads the unpacker's buffers, which have just
        // been grown.
        unsafe { self.infer(0, at, None, |_, _| Ok(())) }
    }
}

/// Compares an output of `batch` samples with its spec; the error describes the difference.
pub(super) fn check_output(
    output: &DynTensorRef<'_>,
    spec: &TensorSpec,
    batch: usize,
) -> Result<(), String> {
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
pub(super) unsafe fn view<'v>(
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
