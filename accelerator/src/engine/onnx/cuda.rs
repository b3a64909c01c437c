//! ONNX Runtime's CUDA provider: a session for each worker, on the stream that the worker's copies are on.

use std::sync::Arc;

use ort::{
    ep::{self, ExecutionProvider, cuda::ConvAlgorithmSearch},
    memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType},
    session::{IoBinding, Session},
    value::{DynTensorRef, Shape, TensorRefMut},
};
use qdl::{
    fabric::Region,
    model::{DType, ModelSpec, TensorSpec},
    rails::Score,
    stats::GpuRecord,
};

use super::session::{Settings, check_output, one_line};
use crate::engine::{
    Batch, EngineError, EngineParams, Worker,
    cuda::{Device, Meter, Registry, Station},
};

/// The GPU of an engine, and what its workers share.
#[derive(Debug)]
pub(super) struct Gpu {
    device: Arc<Device>,
    registry: Arc<Registry>,
    meter: Arc<Meter>,
    max_batch: usize,
    spin_us: u64,
}

impl Gpu {
    /// The library is open.
    ///
    /// # Errors
    /// [`EngineError::Provider`] for a library without the provider, or the GPU's.
    pub fn open(params: &EngineParams) -> Result<Self, EngineError> {
        let provider = |reason| EngineError::Provider { reason };
        match ep::CUDA::is_available() {
            Ok(true) => {}
            Ok(false) => {
                return Err(provider("it was built without CUDA".to_owned()));
            }
            Err(e) => return Err(provider(one_line(&e.to_string()))),
        }
        Ok(Gpu {
            device: Device::open(params.gpu)?,
            registry: Arc::default(),
            meter: Arc::new(Meter::new(params.max_batch)),
            max_batch: params.max_batch,
            spin_us: params.spin_us,
        })
    }

    pub fn register(&self, inputs: &Arc<Region>) {
        self.registry.register(&self.device, inputs);
    }

    pub fn record(&self) -> GpuRecord {
        self.meter.record(&self.device)
    }

    pub fn interior(&self, now_ns: u64) -> Option<Score> {
        self.meter.interior(now_ns)
    }
}

/// One worker: its session before the stream that it runs on.
pub(super) struct OnGpu {
    session: Session,
    station: Station,
    memory: MemoryInfo<'static>,
    inputs: Vec<TensorSpec>,
    output: TensorSpec,
}

impl OnGpu {
    pub fn new(model: &ModelSpec, settings: &Settings, gpu: &Gpu) -> Result<Self, EngineError> {
        let (device, registry, meter) = (&gpu.device, &gpu.registry, &gpu.meter);
        let station = Station::new(device, registry, meter, model, gpu.max_batch, gpu.spin_us)?;
        let index = i32::try_from(device.index()).unwrap_or(i32::MAX);
        let provider = ep::CUDA::default()
            .with_device_id(index)
            // The other searches run a convolution in every way there is, for each new batch size.
            .with_conv_algorithm_search(ConvAlgorithmSearch::Heuristic);
        // SAFETY: the stream is the station's, which is dropped after the session.
        let provider = unsafe { provider.with_compute_stream(station.stream().cast()) };
        let session = settings.open_on(&[provider.build().error_on_failure()])?;
        let memory = MemoryInfo::new(
            AllocationDevice::CUDA,
            index,
            AllocatorType::Device,
            MemoryType::Default,
        );
        Ok(OnGpu {
            session,
            station,
            memory: memory.map_err(|e| EngineError::Provider {
                reason: one_line(&e.to_string()),
            })?,
            inputs: model.inputs.clone(),
            output: model.output.clone(),
        })
    }

    /// Runs the `samples` samples that are staged (none of them: `ran` samples of whatever is there), and gives their outputs to
    /// `each`.
    fn infer(
        &mut self,
        staged: crate::engine::cuda::Staged,
        samples: usize,
        ran: usize,
        each: impl FnMut(usize, &[u8]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let failed = |reason: String| EngineError::Run {
            engine: "onnx",
            batch: ran,
            reason,
        };
        let said = |e: ort::Error| failed(one_line(&e.to_string()));
        let mut binding = self.session.create_binding().map_err(said)?;
        for (i, spec) in self.inputs.iter().enumerate() {
            let address = self.station.input(i);
            // SAFETY: the station's input holds `max_batch` samples on this GPU, which `ran` does not exceed, and lives as long
            // as the session.
            unsafe { bind(&mut binding, &self.memory, spec, ran, address) }.map_err(said)?;
        }
        binding
            .bind_output_to_device(&self.output.name, &self.memory)
            .map_err(said)?;
        let outputs = self.session.run_binding(&binding).map_err(said)?;
        let output: DynTensorRef<'_> = outputs
            .get(&self.output.name)
            .and_then(|v| v.view().downcast().ok())
            .ok_or_else(|| failed(format!("no tensor `{}` came out", self.output.name)))?;
        check_output(&output, &self.output, ran).map_err(failed)?;
        // SAFETY: the output was bound to this GPU's memory, has the model's shape for `ran` samples, and is kept by `outputs`
        // until this returns; the session put its kernels on the station's stream.
        unsafe {
            self.station
                .finish(staged, (samples, ran), output.data_ptr(), each)
        }
    }
}

impl Worker for OnGpu {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        let n = batch.len();
        let staged = self.station.stage(batch);
        let result = staged
            .and_then(|staged| self.infer(staged, n, n, |i, response| batch.write(i, response)));
        if result.is_err() {
            self.station.settle();
        }
        result
    }

    fn warm_up(&mut self, batch: usize) -> Result<(), EngineError> {
        let staged = self.station.stage_nothing()?;
        let ran = batch.min(self.station.max_batch());
        self.infer(staged, 0, ran, |_, _| Ok(()))
    }
}

/// Binds memory of the GPU as an input of `batch` samples.
///
/// # Safety
/// `address` holds so many samples of `spec` in the memory that `memory` describes, as long as the binding lives.
unsafe fn bind(
    binding: &mut IoBinding,
    memory: &MemoryInfo<'static>,
    spec: &TensorSpec,
    batch: usize,
    address: *mut std::ffi::c_void,
) -> ort::Result<()> {
    let shape: Shape = std::iter::once(batch)
        .chain(spec.shape.iter().copied())
        .collect();
    macro_rules! as_type {
        ($t:ty) => {{
            // SAFETY: the caller's promise, for elements of the type named.
            let tensor = unsafe { TensorRefMut::<$t>::from_raw(memory.clone(), address, shape) }?;
            binding.bind_input(&*spec.name, &*tensor)
        }};
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
