//! The `aoti` engine: models that PyTorch compiled ahead of time (`.pt2`), on a GPU or on the CPU.
//!
//! Such a model is a shared library with a small C interface over PyTorch's libraries. All are
//! found at run time, so the build needs neither PyTorch nor CUDA. `models/export_aoti.py` makes
//! such models.
//!
//! * `package`: the archive, its metadata, and its files on disk while the engine lives.
//! * `torch`: PyTorch's libraries and the functions that are called.
//! * `container`: the compiled model.
//! * `worker`: runs batches, on a GPU (see [`cuda`]) or on the CPU.
//!
//! One container serves all workers of an engine, so the weights are loaded once. Each worker runs
//! one batch at a time, on a separate stream.

mod container;
mod package;
mod torch;
mod worker;

use std::sync::Arc;

use fabric::Region;
use qdl::{model::ModelSpec, rails::Score};
use record::GpuRecord;

use self::{
    container::Container,
    package::{Package, Target},
    torch::Torch,
};
use super::{
    Engine, EngineError, EngineParams, Worker,
    cuda::{self, Device, Meter, Registry},
    sizes::Sizes,
};

pub use torch::find_libraries;

/// The `aoti` engine: a compiled model, loaded once.
pub struct Aoti {
    model: ModelSpec,
    container: Arc<Container>,
    place: Place,
    sizes: Sizes,
    spin_us: u64,
}

/// Device that runs the model.
enum Place {
    Cpu,
    Gpu {
        device: Arc<Device>,
        registry: Arc<Registry>,
        meter: Arc<Meter>,
    },
}

impl Aoti {
    /// Reads the package, finds PyTorch and the GPU, and loads the model.
    ///
    /// # Errors
    /// A missing or unusable package, library or GPU, by name.
    pub fn open(params: &EngineParams) -> Result<Self, EngineError> {
        let path = params.file.clone().ok_or_else(|| EngineError::Param {
            field: "model.file",
            reason: "engine aoti needs a model file".to_owned(),
        })?;
        let package = Package::read(&path)?;
        let model = package.model(params)?;
        let sizes = Sizes::new(&params.engine.batch_sizes, params.engine.max_batch)?;
        // The GPU first: an error comes before the libraries load, which takes seconds.
        let device = match package.target() {
            Target::Cpu => None,
            Target::Cuda { capability } => {
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
            device.as_ref().map(|d| d.index()),
            params.engine.threads,
            &model,
        )?;
        let place = match device {
            None => Place::Cpu,
            Some(device) => Place::Gpu {
                device,
                registry: Arc::default(),
                meter: Arc::new(Meter::new(sizes.largest())),
            },
        };
        Ok(Aoti {
            model,
            container: Arc::new(container),
            place,
            sizes,
            spin_us: params.engine.spin_us,
        })
    }
}

impl Engine for Aoti {
    fn name(&self) -> &'static str {
        "aoti"
    }

    fn model(&self) -> &ModelSpec {
        &self.model
    }

    fn worker(&self, _index: usize) -> Result<Box<dyn Worker>, EngineError> {
        match &self.place {
            Place::Cpu => Ok(Box::new(worker::OnCpu::new(self)?)),
            Place::Gpu {
                device,
                registry,
                meter,
            } => Ok(Box::new(worker::OnGpu::new(self, device, registry, meter)?)),
        }
    }

    fn memory(&self, inputs: &Arc<Region>) {
        if let Place::Gpu {
            device, registry, ..
        } = &self.place
        {
            registry.register(device, inputs);
        }
    }

    fn slots(&self, bytes: usize) -> Result<Arc<Region>, EngineError> {
        match &self.place {
            Place::Gpu {
                device, registry, ..
            } => cuda::slots(self.name(), device, registry, bytes),
            Place::Cpu => Err(EngineError::Slots {
                engine: self.name(),
                reason: "its model is compiled for the CPU".to_owned(),
            }),
        }
    }

    fn gpus(&self) -> Vec<GpuRecord> {
        match &self.place {
            Place::Cpu => Vec::new(),
            Place::Gpu { device, meter, .. } => vec![meter.record(device)],
        }
    }

    fn interior(&self, now_ns: u64) -> Option<Score> {
        match &self.place {
            Place::Cpu => None,
            Place::Gpu { meter, .. } => meter.interior(now_ns),
        }
    }
}
