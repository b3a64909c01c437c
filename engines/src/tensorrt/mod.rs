//! The `tensorrt` engine: NVIDIA TensorRT's plans on a GPU; builds missing plans from ONNX.
//!
//! TensorRT's C++ classes depend on the version of its headers. A thin shim
//! (`engines/tensorrt/`) adds a C interface. `cargo xtask tensorrt --include DIR` compiles the
//! shim with the user's headers; this module opens the shim at run time.
//!
//! * `libraries`: finds the shim and the libraries.
//! * `shim`: the C interface in Rust; `plan`: a plan on a GPU and its contexts.
//! * `plans`: the cache of built plans; `order`: the parameters of a build; `build`: the build in a
//!   child process.
//! * `describe`: inputs and outputs of a plan; `profiles`: the profile of a batch.
//! * `worker`: the plan of one worker (see `workers`); records the kernels of small batches as
//!   CUDA graphs.

mod build;
mod describe;
mod libraries;
mod order;
mod plan;
mod plans;
mod profiles;
mod shim;
mod worker;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

pub use crate::config::Precision;
use qdl::model::{DType, ModelSpec};

pub use build::build_if_asked;
pub use libraries::{SHIM, find_library, find_shim};

use self::{
    describe::describe,
    order::Order,
    plan::TrtPlan,
    profiles::Profiles,
    shim::{Library, TrtError},
    worker::PlanRunner,
};
use super::{
    Engine, EngineError, EngineParams, Worker,
    batch::Sizes,
    cuda::{Device, Gpu},
    open_model,
    workers::GpuWorker,
};
use crate::{
    MAX_BATCH,
    config::{AnswerSource, EngineKind},
    entry::EngineEntry,
};
use fabric::os::lock;

pub(crate) const ENTRY: EngineEntry = EngineEntry {
    on_gpu: true,
    has_library_folder: true,
    keys: &[
        "library",
        "intra_threads",
        "gpu",
        "batch_sizes",
        "precision",
        "profiles",
        "optimization_level",
    ],
    check: |engine, out| {
        engine.check_sizes("batch_sizes", &engine.batch_sizes, engine.max_batch, out);
        engine.check_sizes("profiles", &engine.profiles, MAX_BATCH, out);
    },
    ..EngineEntry::of(
        EngineKind::TensorRt,
        "tensorrt",
        AnswerSource::File,
        |params| Ok(Arc::new(TensorRtEngine::open(params)?)),
    )
};

/// The `tensorrt` engine: a plan that makes workers.
pub struct TensorRtEngine(Arc<TensorRt>);

struct TensorRt {
    library: Arc<Library>,
    /// Content of the plan's file, from which each worker loads its own plan.
    bytes: Vec<u8>,
    /// The plan that `open` loaded: the first worker takes it.
    first: Mutex<Option<TrtPlan>>,
    device: Arc<Device>,
    gpu: Arc<Gpu>,
    model: ModelSpec,
    /// The model with the plan's output type, which may be narrower than the configuration's.
    plan_model: ModelSpec,
    /// True if the plan's output is i32 and the configuration's is i64.
    widen: bool,
    /// Index in the plan of each input, in the model's order.
    inputs: Vec<usize>,
    output: usize,
    profiles: Profiles,
    sizes: Sizes,
}

impl TensorRtEngine {
    /// Finds GPU, shim and TensorRT, builds a missing plan, and loads the plan.
    ///
    /// # Errors
    /// A library, GPU or model is missing or unusable; the error names it.
    pub fn open(params: &EngineParams) -> Result<Self, EngineError> {
        let path = params.model_file()?;
        open_model(&path, "")?;
        let sizes = Sizes::new(&params.engine.batch_sizes, params.engine.max_batch);
        let onnx = path
            .extension()
            .is_some_and(|e| e.eq_ignore_ascii_case("onnx"));
        if !onnx && (params.engine.precision.is_some() || !params.engine.profiles.is_empty()) {
            return Err(EngineError::param(
                if params.engine.precision.is_some() {
                    "precision"
                } else {
                    "profiles"
                },
                format!(
                    "{} is a plan, which was built with its own: remove it, or name the .onnx",
                    path.display()
                ),
            ));
        }
        let shim = find_shim()?;
        let library = Library::open(&shim, |headers| {
            find_library(params.engine.library.as_deref(), headers)
        })?;
        let device = Device::open(params.engine.gpu)?;
        device.bind()?;
        let plan = if onnx {
            plan_of(&path, &shim, &library, &device, params)?
        } else {
            path
        };
        let bytes = fs::read(&plan).map_err(|e| EngineError::model(&plan, e))?;
        let refuse =
            |what: &'static str, why: TrtError| refusal(&plan, &library, &device, what, &why);
        let loaded =
            TrtPlan::load(&library, &bytes).map_err(|why| refuse("loading the plan", why))?;
        let tensors = loaded
            .tensors()
            .map_err(|why| refuse("reading the plan", why))?;
        let (plan_model, inputs, output) = describe(&plan, params, &tensors)?;
        let ranges = tensors
            .iter()
            .find(|t| !t.output)
            .map(|t| loaded.profiles(t));
        let ranges = ranges
            .unwrap_or(Ok(Vec::new()))
            .map_err(|why| refuse("reading the plan", why))?;
        let profiles = Profiles::new(ranges);
        if let Some(bad) = std::iter::once(params.engine.max_batch)
            .chain(params.engine.batch_sizes.iter().copied())
            .find(|n| profiles.choose(*n).is_none())
        {
            return Err(EngineError::param(
                "max_batch",
                format!(
                    "{} takes batches of up to {}, and {bad} is asked for",
                    plan.display(),
                    profiles.largest()
                ),
            ));
        }
        let mut model = plan_model.clone();
        let asked = params.spec.as_ref().map(|s| s.output.dtype);
        let widen = model.output.dtype == DType::I32 && asked == Some(DType::I64);
        if widen {
            model.output.dtype = DType::I64;
        }
        let largest = profiles
            .choose(params.engine.max_batch)
            .map_or(params.engine.max_batch, |(_, at)| at);
        Ok(TensorRtEngine(Arc::new(TensorRt {
            library,
            bytes,
            first: Mutex::new(Some(loaded)),
            gpu: Gpu::new(device.clone(), largest, params.engine.spin_us),
            device,
            model,
            plan_model,
            widen,
            inputs,
            output,
            profiles,
            sizes,
        })))
    }
}

impl TensorRt {
    fn refusal(&self, what: &'static str, why: &TrtError) -> EngineError {
        refusal(&self.library.path, &self.library, &self.device, what, why)
    }
}

/// Converts TensorRT's message to an engine error about the plan's file.
fn refusal(
    path: &Path,
    library: &Library,
    device: &Device,
    what: &'static str,
    why: &TrtError,
) -> EngineError {
    if why.out_of_memory() {
        return device.out_of_memory(what);
    }
    EngineError::model(
        path,
        format!("{what} with TensorRT {}: {why}", library.version()),
    )
}

/// Path of the plan for an ONNX model, from the cache; builds a missing plan.
fn plan_of(
    onnx: &Path,
    shim: &Path,
    library: &Library,
    device: &Device,
    params: &EngineParams,
) -> Result<PathBuf, EngineError> {
    let bytes = fs::read(onnx).map_err(|e| EngineError::model(onnx, e))?;
    let precision = params.engine.precision.unwrap_or(Precision::Fp16);
    let only = [params.engine.max_batch];
    let profiles = if params.engine.profiles.is_empty() {
        &only[..]
    } else {
        &params.engine.profiles
    };
    let version = library.version();
    let key = plans::PlanKey {
        model: &bytes,
        version: &version,
        gpu: &device.name,
        capability: device.capability,
        precision,
        profiles,
        level: params.engine.optimization_level,
    };
    let plan = plans::folder()?.join(key.file_name(onnx));
    if plan.is_file() {
        return Ok(plan);
    }
    drop(bytes);
    let began = std::time::Instant::now();
    let order = Order {
        shim: absolute(shim),
        library: absolute(&library.path),
        onnx: absolute(onnx),
        plan: absolute(&plan),
        precision,
        profiles: profiles.to_vec(),
        optimization_level: params.engine.optimization_level,
        gpu: params.engine.gpu,
    };
    order.carry_out(|| {
        tracing::info!(
            "building {} with TensorRT {version} for {}: this takes minutes, once",
            plan.display(),
            device.name
        );
    })?;
    tracing::info!("built in {} s", began.elapsed().as_secs());
    Ok(plan)
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

impl Engine for TensorRtEngine {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn model(&self) -> &ModelSpec {
        &self.0.model
    }

    fn worker(&self, _index: usize) -> Result<Box<dyn Worker>, EngineError> {
        let first = lock(&self.0.first).take();
        let e = &self.0;
        Ok(Box::new(GpuWorker::new(&e.gpu, &e.plan_model, |stream| {
            PlanRunner::new(e, first, stream)
        })?))
    }

    fn gpu(&self) -> Option<&Gpu> {
        Some(&self.0.gpu)
    }
}
