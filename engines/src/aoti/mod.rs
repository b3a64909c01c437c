//! The `aoti` engine: models that PyTorch compiled ahead of time (`.pt2`), on a GPU or on the CPU.
//!
//! A compiled model is a shared library with a small C interface over PyTorch's libraries. The
//! engine opens model and libraries at run time, so the build needs neither PyTorch nor CUDA.
//! `models/export_aoti.py` compiles models.
//!
//! * `package`: the archive, its metadata, and its files on disk while the engine lives.
//! * `torch`: PyTorch's libraries and the functions that the engine calls.
//! * `container`: the compiled model.
//!
//! One container serves all workers of an engine, so the weights are loaded once. Each worker runs
//! one batch at a time, on a separate stream.

mod container;
mod package;
mod torch;

use std::{ffi::c_void, ptr, sync::Arc};

use fabric::Region;
use qdl::model::ModelSpec;

use self::{
    container::Container,
    package::{CompiledFor, Package},
    torch::Torch,
};
use super::{
    Engine, EngineError, EngineParams, Worker,
    batch::Sizes,
    cuda::{Device, Gpu},
    workers::{BatchModel, CpuWorker, GpuWorker},
};
use crate::{
    config::{AnswerSource, EngineKind},
    entry::EngineEntry,
};

#[cfg(test)]
pub use torch::find_libraries;

pub(crate) const ENTRY: EngineEntry = EngineEntry {
    on_gpu: true,
    has_library_folder: true,
    keys: &["library", "intra_threads", "gpu", "batch_sizes"],
    check: |engine, out| {
        engine.check_sizes("batch_sizes", &engine.batch_sizes, engine.max_batch, out);
    },
    ..EngineEntry::of(EngineKind::Aoti, "aoti", AnswerSource::File, |params| {
        Ok(Arc::new(Aoti::open(params)?))
    })
};

/// The `aoti` engine: a compiled model, loaded once.
pub struct Aoti {
    model: ModelSpec,
    container: Arc<Container>,
    /// `None` for a model that is compiled for the CPU.
    gpu: Option<Arc<Gpu>>,
    sizes: Sizes,
}

impl Aoti {
    /// Reads the package, finds PyTorch and the GPU, and loads the model.
    /// Error: a package, library or GPU is missing or unusable; the error names it.
    pub fn open(params: &EngineParams) -> Result<Self, EngineError> {
        let path = params.model_file()?;
        let package = Package::read(&path)?;
        let model = package.model(params)?;
        let sizes = Sizes::new(&params.engine.batch_sizes, params.engine.max_batch);
        // Open the GPU first: the libraries take seconds to load, so an error shows earlier.
        let device = match &package.target {
            CompiledFor::Cpu => None,
            CompiledFor::Cuda { capability } => {
                let device = Device::open(params.engine.gpu)?;
                package.check_capability(capability.as_deref(), &device)?;
                Some(device)
            }
        };
        let torch = Torch::load(params.engine.library.as_deref(), device.is_some())?;
        if let Some(device) = &device {
            device.bind()?;
        }
        let container = Container::open(
            torch,
            package.extract()?,
            device.as_ref().map(|d| d.index),
            params.engine.threads,
            &model,
        )?;
        let gpu = |device| Gpu::new(device, sizes.largest, params.engine.spin_us);
        Ok(Aoti {
            model,
            container: Arc::new(container),
            gpu: device.map(gpu),
            sizes,
        })
    }
}

impl Engine for Aoti {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn model(&self) -> &ModelSpec {
        &self.model
    }

    fn worker(&self, _index: usize) -> Result<Box<dyn Worker>, EngineError> {
        let runner = |stream| Runner {
            container: self.container.clone(),
            sizes: self.sizes.clone(),
            stream,
        };
        Ok(match &self.gpu {
            None => Box::new(CpuWorker::new(&self.model, runner(ptr::null_mut()))?),
            Some(gpu) => Box::new(GpuWorker::new(gpu, &self.model, |stream| {
                Ok(runner(stream.handle()))
            })?),
        })
    }

    fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_deref()
    }

    fn slots(&self, bytes: usize) -> Result<Arc<Region>, EngineError> {
        match &self.gpu {
            Some(gpu) => gpu.slots(self.name(), bytes),
            None => {
                let reason = "its model is compiled for the CPU";
                Err(EngineError::slots(self.name(), reason))
            }
        }
    }
}

/// The container for one worker.
struct Runner {
    container: Arc<Container>,
    sizes: Sizes,
    /// The worker's stream; null on the CPU.
    stream: *mut c_void,
}

impl<S> BatchModel<S> for Runner {
    const IN_PLACE: bool = true;

    fn run_at(&self, n: usize) -> Result<usize, EngineError> {
        Ok(self.sizes.run_at(n))
    }

    unsafe fn run(
        &mut self,
        stream: &mut S,
        inputs: &[*mut c_void],
        at: usize,
        done: impl FnOnce(&mut S, &[*const c_void]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        // SAFETY: guaranteed by the caller; the stream is the worker's own.
        let output = unsafe { self.container.run(inputs, at, self.stream)? };
        done(stream, &[output.data()])
    }
}
