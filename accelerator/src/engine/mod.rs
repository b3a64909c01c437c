//! What runs a batch: the engine trait, and one file or folder per engine.
//!
//! An [`Engine`] is shared by all threads and makes one [`Worker`] for each worker thread; a worker owns whatever may
//! not be shared (an ONNX Runtime session, a CUDA stream). The pipeline calls [`Engine::worker`] *on* the thread
//! that the worker will live on, so that contexts bound to a thread and first-touch memory are right.
//!
//! Overlapping copies with compute needs no more than several workers: while one waits for its stream,
//! another one's batch is being copied.

pub mod aoti;
mod batch;
pub mod cuda;
mod digest;
mod error;
mod lengths;
mod null;
pub mod onnx;
mod python;
mod sizes;
pub mod tensorrt;
mod unpack;

use std::{path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use qdl::{
    config::{Gather, Precision},
    fabric::Region,
    model::ModelSpec,
    rails::Score,
    serve::Arrival,
    stats::GpuRecord,
};

pub use batch::{Batch, BatchCounts, Run};
pub use digest::Digest;
pub use error::{EngineError, Fault};
pub(crate) use lengths::Lengths;
pub use null::Null;

/// Largest batch that anything here is asked for.
pub const MAX_BATCH: usize = 65_536;

/// A model, ready to make workers.
pub trait Engine: Send + Sync {
    /// The engine's name in configs and reports: `null`, `digest`, `onnx`, `aoti`, `tensorrt`.
    fn name(&self) -> &'static str;

    /// What the model takes and gives, per sample.
    fn model(&self) -> &ModelSpec;

    /// True where every sample is as good as another, whatever its length: then none is refused for it
    /// before it reaches the engine.
    fn takes_any_bytes(&self) -> bool {
        false
    }

    /// Makes the worker of one thread; called on that thread, `index` counts from 0.
    ///
    /// # Errors
    /// Whatever keeps the model from being loaded once more.
    fn worker(&self, index: usize) -> Result<Box<dyn Worker>, EngineError>;

    /// The engine's short cut past queue and worker threads, where it has one: then samples are answered on
    /// the rail thread that brought them, with no wake-up.
    fn inline(&self) -> Option<&dyn Inline> {
        None
    }

    /// Told of each piece of memory that samples will lie in, before the first of them ([`qdl::serve::Service::memory`]).
    fn memory(&self, inputs: &Arc<Region>) {
        let _ = inputs;
    }

    /// Memory of its GPU for slots, at least `bytes` of it; what lands there is read in place ([`qdl::serve::Service::slots`]).
    ///
    /// # Errors
    /// [`EngineError::Slots`] where the engine reads none, and the driver's.
    fn slots(&self, bytes: usize) -> Result<Arc<Region>, EngineError> {
        let _ = bytes;
        Err(EngineError::Slots {
            engine: self.name(),
            reason: "it runs on the CPU, or copies every batch".to_owned(),
        })
    }

    /// What the GPUs have done since the start; none where no GPU is used.
    fn gpus(&self) -> Vec<GpuRecord> {
        Vec::new()
    }

    /// How well inputs come from the memory they landed in to the GPU; nothing where there is no such way.
    fn interior(&self, now_ns: u64) -> Option<Score> {
        let _ = now_ns;
        None
    }

    /// True where samples are answered on the rail thread that brought them.
    fn runs_inline(&self) -> bool {
        self.inline().is_some()
    }
}

/// One thread's means to run batches.
pub trait Worker {
    /// Runs the batch: reads every input, writes every output and its length.
    ///
    /// # Errors
    /// [`EngineError::fault`] says what follows. A sample's fault costs that sample's connection: the
    /// batch is run again, sample by sample, and those that fail alone are refused. The engine's fault
    /// ends the node. Where it may be either's, [`Worker::warm_up`] decides: an engine that fails on zeros
    /// is broken. Nothing that a frontend sends may make this panic.
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError>;

    /// Runs `batch` samples of zeros and throws the answers away, so that the first real batch of that size finds
    /// everything allocated and compiled. Called with growing sizes before the first sample arrives, and
    /// after a batch that failed: it clears what that batch left in the buffers.
    ///
    /// # Errors
    /// As [`Worker::run`].
    fn warm_up(&mut self, batch: usize) -> Result<(), EngineError> {
        let _ = batch;
        Ok(())
    }
}

/// Answers one sample in next to no time, from any thread.
pub trait Inline: Send + Sync {
    /// Writes the response into the arrival's output and returns its length in bytes.
    ///
    /// # Errors
    /// [`EngineError::OutputRoom`] where the response does not fit.
    fn answer(&self, arrival: &mut Arrival) -> Result<u32, EngineError>;
}

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// Answers at once with zeros.
    Null,
    /// Answers with a hash of the input.
    Digest,
    /// ONNX Runtime, on the CPU or on a GPU.
    Onnx,
    /// A model that PyTorch compiled ahead of time, on a GPU or on the CPU.
    Aoti,
    /// A plan of TensorRT's, or an ONNX model that one is built from, on a GPU.
    TensorRt,
}

impl FromStr for EngineKind {
    type Err = EngineError;

    fn from_str(s: &str) -> Result<Self, EngineError> {
        match s {
            "null" => Ok(EngineKind::Null),
            "digest" => Ok(EngineKind::Digest),
            "onnx" => Ok(EngineKind::Onnx),
            "aoti" => Ok(EngineKind::Aoti),
            "tensorrt" => Ok(EngineKind::TensorRt),
            other => Err(EngineError::Param {
                field: "kind",
                reason: format!("`{other}` is none of null, digest, onnx, aoti, tensorrt"),
            }),
        }
    }
}

/// All that engines and batcher are told.
#[derive(Clone, Debug)]
pub struct EngineParams {
    /// Which engine.
    pub kind: EngineKind,
    /// The model's name, equal on both nodes.
    pub model: String,
    /// The model file; `onnx` needs one.
    pub file: Option<PathBuf>,
    /// Largest sample in bytes, for `null` and `digest`, which take any bytes.
    pub max_input: usize,
    /// Bytes of a response of `null`.
    pub output_bytes: usize,
    /// Most samples in a batch; 1 to [`MAX_BATCH`].
    pub max_batch: usize,
    /// Longest time in microseconds that a sample waits for company while a worker is free and another is busy.
    pub max_delay_us: u64,
    /// Worker threads: batches that run at the same time; at least 1.
    pub threads: usize,
    /// Threads of ONNX Runtime inside one batch; at least 1.
    pub intra_threads: usize,
    /// The library of the engine: ONNX Runtime's, or the folder of PyTorch's or TensorRT's. Without it the usual places are
    /// searched ([`onnx::find_library`], [`aoti::find_libraries`], [`tensorrt::find_library`]).
    pub library: Option<PathBuf>,
    /// Pretended compute of `null` and `digest`, microseconds per batch, slept on the worker thread.
    pub delay_us: u64,
    /// Lets `null` and `digest` answer on the rail thread where they pretend no compute.
    pub inline: bool,
    /// Inputs of an ONNX model that may be shorter along their first dimension. They travel at their true
    /// length and are padded with zeros here.
    pub ragged: Vec<String>,
    /// Microseconds that an idle worker spins before it sleeps.
    pub spin_us: u64,
    /// What the configuration says of the model, for engines whose model file may not say it.
    pub spec: Option<ModelSpec>,
    /// Runs an ONNX model on the GPU in place of the CPU.
    pub cuda: bool,
    /// The GPU, as CUDA counts them.
    pub gpu: usize,
    /// How inputs that lie apart get to the GPU.
    pub gather: Gather,
    /// Sizes that batches are run at, ascending; what falls between two is padded. Empty: any size.
    pub batch_sizes: Vec<usize>,
    /// Microseconds after its arrival at which a sample's answer is due; a batch that would miss it is not waited for.
    pub latency_us: Option<u64>,
    /// What a plan that `tensorrt` builds computes in; without it half precision.
    pub precision: Option<Precision>,
    /// Largest batch of each profile of a plan that `tensorrt` builds, ascending; none: one profile up to `max_batch`.
    pub profiles: Vec<usize>,
    /// How hard the builder of such a plan looks for fast kernels, 0 to 5; none: TensorRT's own choice.
    pub optimization_level: Option<u8>,
}

impl Default for EngineParams {
    fn default() -> Self {
        EngineParams {
            kind: EngineKind::Digest,
            model: "opaque".to_owned(),
            file: None,
            max_input: 150_528,
            output_bytes: 8,
            max_batch: 64,
            max_delay_us: 500,
            threads: 1,
            intra_threads: 1,
            library: None,
            delay_us: 0,
            inline: true,
            ragged: Vec::new(),
            spin_us: 20,
            spec: None,
            cuda: false,
            gpu: 0,
            gather: Gather::Auto,
            batch_sizes: Vec::new(),
            latency_us: None,
            precision: None,
            profiles: Vec::new(),
            optimization_level: None,
        }
    }
}

impl EngineParams {
    /// Checks what no engine can live with.
    ///
    /// # Errors
    /// [`EngineError::Param`] names the field.
    pub fn check(&self) -> Result<(), EngineError> {
        let at_least_one = |field, value: usize| {
            if value == 0 {
                Err(EngineError::Param {
                    field,
                    reason: "must be at least 1".to_owned(),
                })
            } else {
                Ok(())
            }
        };
        at_least_one("max_batch", self.max_batch)?;
        at_least_one("threads", self.threads)?;
        at_least_one("intra_threads", self.intra_threads)?;
        at_least_one("max_input", self.max_input)?;
        if self.max_batch > MAX_BATCH {
            return Err(EngineError::Param {
                field: "max_batch",
                reason: format!("{} is more than {MAX_BATCH}", self.max_batch),
            });
        }
        if u32::try_from(self.output_bytes).is_err() {
            return Err(EngineError::Param {
                field: "output_bytes",
                reason: format!("{} do not fit a response", self.output_bytes),
            });
        }
        Ok(())
    }

    /// `delay_us` as a duration.
    pub(crate) fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_us)
    }
}

/// Makes the engine that `params` names. Models are loaded here once, so that a bad one is found at the start.
///
/// # Errors
/// Everything that [`EngineError`] knows of before the first batch.
pub fn create(params: &EngineParams) -> Result<Arc<dyn Engine>, EngineError> {
    params.check()?;
    Ok(match params.kind {
        EngineKind::Null => Arc::new(Null::new(params)),
        EngineKind::Digest => Arc::new(Digest::new(params)),
        EngineKind::Onnx => Arc::new(onnx::Onnx::open(params)?),
        EngineKind::Aoti => Arc::new(aoti::Aoti::open(params)?),
        EngineKind::TensorRt => Arc::new(tensorrt::TensorRtEngine::open(params)?),
    })
}
