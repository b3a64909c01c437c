//! The `onnx` engine: ONNX Runtime, found at run time, on the CPU or, with a library built for it,
//! on a GPU.
//!
//! Neither the build nor other engines need ONNX Runtime: [`find_library`] finds the library when
//! the engine is made. `spec` reads the model's tensors from the metadata of the model file. Every
//! worker has its own session, because a session runs one batch at a time.
//!
//! On the CPU, a session reads a batch in place if the samples form one run. The worker copies
//! other batches into an aligned buffer, and counts the copies. On a GPU (`provider`), `cuda`
//! copies the inputs from the slots to the GPU, and the outputs back.

mod library;
mod session;
mod spec;

use std::sync::Arc;

use crate::{
    config::{AnswerSource, EngineKind, Provider},
    entry::EngineEntry,
};
use qdl::model::ModelSpec;

use self::session::Runner;
use super::{
    Engine, EngineError, EngineParams, Worker,
    cuda::{Device, Gpu},
    workers::{CpuWorker, GpuWorker},
};

pub use library::find_library;

pub(crate) use self::session::{SessionCfgs, gpu_memory};

pub(crate) const ENTRY: EngineEntry = EngineEntry {
    has_other_outputs: true,
    keys: &["library", "intra_threads", "provider", "gpu"],
    ..EngineEntry::of(EngineKind::Onnx, "onnx", AnswerSource::File, |params| {
        Ok(Arc::new(Onnx::open(params)?))
    })
};

/// The `onnx` engine: a checked model file, which each worker loads again.
#[derive(Debug)]
pub struct Onnx {
    model: ModelSpec,
    fixed_batch: Option<usize>,
    left_out: Vec<String>,
    settings: SessionCfgs,
    gpu: Option<Arc<Gpu>>,
}

impl Onnx {
    /// Finds ONNX Runtime, loads the model and reads its tensors.
    /// Error: the library or the model is missing or unusable; the error has the path.
    pub fn open(params: &EngineParams) -> Result<Self, EngineError> {
        let settings = SessionCfgs::find(params)?;
        let session = settings.open(&[])?;
        let spec::ReadModel {
            model,
            fixed_batch,
            left_out,
        } = spec::read(&session, params, &settings.path)?;
        let most = fixed_batch.unwrap_or(params.engine.max_batch);
        let on_gpu = params.engine.provider == Provider::Cuda;
        let device = on_gpu.then(|| Device::open(params.engine.gpu));
        let gpu = |device| Gpu::new(device, most, params.engine.spin_us);
        Ok(Onnx {
            gpu: device.transpose()?.map(gpu),
            model,
            fixed_batch,
            left_out,
            settings,
        })
    }
}

impl Engine for Onnx {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn model(&self) -> &ModelSpec {
        &self.model
    }

    fn worker(&self, _index: usize) -> Result<Box<dyn Worker>, EngineError> {
        let (model, fixed, settings) = (&self.model, self.fixed_batch, &self.settings);
        Ok(match &self.gpu {
            None => Box::new(CpuWorker::new(
                model,
                Runner::on_cpu(model, fixed, settings)?,
            )?),
            Some(gpu) => Box::new(GpuWorker::new(gpu, model, |stream| {
                Runner::on_gpu(model, fixed, settings, (gpu.device.index, stream))
            })?),
        })
    }

    fn fixed_batch(&self) -> Option<usize> {
        self.fixed_batch
    }

    fn left_out(&self) -> &[String] {
        &self.left_out
    }

    fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_deref()
    }
}
