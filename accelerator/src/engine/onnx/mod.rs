//! The `onnx` engine: ONNX Runtime, found at run time, on the CPU or, with a library built for it,
//! on a GPU.
//!
//! The build needs no ONNX Runtime, and neither do other engines: [`find_library`] searches it when
//! the engine is made. `spec` reads the model's tensors from its metadata. Every worker has its own
//! session, because a session runs one batch at a time.
//!
//! The session reads a batch in place if its samples form one run. Other batches are gathered into
//! an aligned buffer, and the copies are counted. On a GPU (`cuda`) batches take the path of all
//! GPU engines: copies from the slots to the GPU, tensors in its memory, outputs copied back.

mod cuda;
mod library;
mod session;
mod spec;

use std::{fs, path::PathBuf, sync::Arc};

use fabric::Region;
use qdl::{config::Provider, model::ModelSpec, rails::Score};
use record::GpuRecord;

use self::session::Worker as OnnxWorker;
use super::{Engine, EngineError, EngineParams, Worker, onnx_data};

pub use library::find_library;

pub(in crate::engine) use self::{
    library::load,
    session::{Settings, one_line},
};

/// The `onnx` engine: a model that was loaded once and can be loaded again.
#[derive(Debug)]
pub struct Onnx {
    model: ModelSpec,
    /// The model's fixed batch size, if it has one.
    fixed_batch: Option<usize>,
    settings: Settings,
    gpu: Option<cuda::Gpu>,
}

impl Onnx {
    /// Finds ONNX Runtime, loads the model and reads its tensors.
    ///
    /// # Errors
    /// A missing or unusable library or model, with its path.
    pub fn open(params: &EngineParams) -> Result<Self, EngineError> {
        let path = params.file.clone().ok_or_else(|| EngineError::Param {
            field: "model.file",
            reason: "engine onnx needs a model file".to_owned(),
        })?;
        check_readable(&path)?;
        load(params.engine.library.as_deref())?;
        let on_gpu = params.engine.provider == Provider::Cuda;
        if on_gpu {
            cuda::check_provider()?;
        }
        let settings = Settings {
            path,
            intra_threads: params.engine.intra_threads,
        };
        let session = settings
            .open()
            .map_err(|error| match onnx_data::wrong(&settings.path) {
                Some(reason) => EngineError::ModelInvalid {
                    path: settings.path.clone(),
                    reason,
                },
                None => error,
            })?;
        let (named, ragged) = (params.spec.as_ref(), &params.ragged);
        let spec::Read { model, fixed_batch } =
            spec::read(&session, &params.model, named, ragged, &settings.path)?;
        let most = fixed_batch.unwrap_or(params.engine.max_batch);
        Ok(Onnx {
            gpu: on_gpu.then(|| cuda::Gpu::open(params, most)).transpose()?,
            model,
            fixed_batch,
            settings,
        })
    }
}

impl Engine for Onnx {
    fn name(&self) -> &'static str {
        "onnx"
    }

    fn model(&self) -> &ModelSpec {
        &self.model
    }

    fn worker(&self, _index: usize) -> Result<Box<dyn Worker>, EngineError> {
        let (model, fixed, settings) = (&self.model, self.fixed_batch, &self.settings);
        Ok(match &self.gpu {
            None => Box::new(OnnxWorker::new(model, fixed, settings)?),
            Some(gpu) => Box::new(cuda::OnGpu::new(model, fixed, settings, gpu)?),
        })
    }

    fn fixed_batch(&self) -> Option<usize> {
        self.fixed_batch
    }

    fn memory(&self, inputs: &Arc<Region>) {
        if let Some(gpu) = &self.gpu {
            gpu.register(inputs);
        }
    }

    fn gpus(&self) -> Vec<GpuRecord> {
        self.gpu.iter().map(cuda::Gpu::record).collect()
    }

    fn interior(&self, now_ns: u64) -> Option<Score> {
        self.gpu.as_ref()?.interior(now_ns)
    }
}

/// Checks that the model file can be read; the system's error is clearer than ONNX Runtime's.
pub(in crate::engine) fn check_readable(path: &PathBuf) -> Result<(), EngineError> {
    let missing = |source| EngineError::ModelMissing {
        path: path.clone(),
        source,
    };
    let meta = fs::File::open(path)
        .and_then(|f| f.metadata())
        .map_err(missing)?;
    if meta.is_file() {
        Ok(())
    } else {
        Err(missing(std::io::Error::other("is not a file")))
    }
}
