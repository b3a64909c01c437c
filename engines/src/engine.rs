//! The traits of an engine and its workers, and an engine's parameters.
//!
//! All threads share an [`Engine`], which makes one [`Worker`] for each worker thread. A worker
//! owns everything that threads cannot share (an ONNX Runtime session, a CUDA stream). The pipeline
//! calls [`Engine::worker`] *on* the worker's thread, so that thread-bound contexts and first-touch
//! memory belong to that thread.
//!
//! Several workers overlap copies with compute: one worker copies while another waits for kernels.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use fabric::Region;
use qdl::{
    model::{ForeignFormat, ModelSpec},
    rails::Score,
    serve::Arrival,
};
use record::{GpuRecord, PrefixCache, ServerVersion};

use crate::{
    batch::Batch,
    config::{EngineConfig, EngineKind},
    cuda::Gpu,
    error::EngineError,
    streaming::Streaming,
};

/// Largest sample, in bytes, if the engine takes any bytes and no model is configured.
pub(crate) const ANY_INPUT: usize = 150_528;

/// A loaded model that makes workers.
pub trait Engine: Send + Sync {
    /// The engine's name in configs and reports.
    fn name(&self) -> &'static str;

    /// Inputs and outputs of the model, per sample.
    fn model(&self) -> &ModelSpec;

    /// True if the engine takes samples of any length. The pipeline then checks no length.
    fn takes_any_bytes(&self) -> bool {
        false
    }

    /// Makes a worker for the calling thread. `index` is the worker's number, from 0.
    ///
    /// # Errors
    /// The engine cannot load the model for this worker. An engine that batches by itself has no
    /// workers.
    fn worker(&self, index: usize) -> Result<Box<dyn Worker>, EngineError> {
        let _ = index;
        Err(EngineError::param(
            "kind",
            format!(
                "engine `{}` batches by itself and has no workers",
                self.name()
            ),
        ))
    }

    /// State of the prefix cache, which reuses computed prompt prefixes. `None` if the engine has
    /// no prefix cache. Call after the engine's start: before, the state is unknown.
    fn prefix_cache(&self) -> Option<PrefixCache> {
        None
    }

    /// Version of the server behind the engine. Call after the engine's start: before, and for
    /// engines that do not ask, it is `None`.
    fn server(&self) -> Option<ServerVersion> {
        None
    }

    /// The interface of an engine that batches by itself; `None` for an engine with workers. The
    /// answers have token ids without padding, so an answer's length gives LoadGen's token count.
    fn streaming(&self) -> Option<&dyn Streaming> {
        None
    }

    /// The interface of an engine that answers inline: the NIC thread that received a sample
    /// answers it, without queue and workers. `None` if the engine needs workers.
    fn inline(&self) -> Option<&dyn Inline> {
        None
    }

    /// The model's batch size, if it is fixed. The engine then pads every batch to this size and
    /// discards the outputs of the padding.
    fn fixed_batch(&self) -> Option<usize> {
        None
    }

    /// Names of the model file's outputs that are not in [`Engine::model`].
    fn left_out(&self) -> &[String] {
        &[]
    }

    /// The GPU that runs the batches; `None` for an engine on the CPU.
    fn gpu(&self) -> Option<&Gpu> {
        None
    }

    /// Announces a memory region before the first sample in this region arrives
    /// ([`qdl::serve::Service::memory`]).
    fn memory(&self, inputs: &Arc<Region>) {
        if let Some(gpu) = self.gpu() {
            gpu.register(inputs);
        }
    }

    /// Allocates at least `bytes` of slots in GPU memory, from which the engine reads samples
    /// ([`qdl::serve::Service::slots`]).
    ///
    /// # Errors
    /// The engine cannot read slots in GPU memory; driver errors.
    fn slots(&self, bytes: usize) -> Result<Arc<Region>, EngineError> {
        let _ = bytes;
        let reason = "it runs on the CPU, or copies every batch";
        Err(EngineError::slots(self.name(), reason))
    }

    /// Records of the GPUs since the start; empty for an engine without a GPU.
    fn gpus(&self) -> Vec<GpuRecord> {
        self.gpu().iter().map(|gpu| gpu.record()).collect()
    }

    /// Score at `now_ns` of the input copies to the GPU; `None` without a GPU, or before any copy.
    fn interior(&self, now_ns: u64) -> Option<Score> {
        self.gpu()?.interior(now_ns)
    }
}

/// Answers samples on the NIC thread that received them.
pub trait Inline {
    /// Writes the answers to a burst, and adds each answer's length in bytes to `lens`.
    ///
    /// The caller has not checked the lengths of the samples.
    ///
    /// # Errors
    /// A slot has no room for its answer: the node ends.
    fn answer(&self, burst: &mut [Arrival], lens: &mut Vec<u32>) -> Result<(), EngineError>;
}

/// Runs batches on one thread.
pub trait Worker {
    /// Runs the batch: reads every input, writes every output and its length.
    ///
    /// # Errors
    /// [`EngineError::fault`] decides the consequence. If a sample is at fault, the pipeline runs
    /// the samples one by one and refuses those that fail alone. If the engine is at fault, the
    /// node ends. If either may be at fault, [`Worker::warm_up`] decides: an engine that fails on
    /// zeros is broken. No input of a frontend may cause a panic.
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError>;

    /// Runs `batch` samples of zeros and discards the answers. The first real batch of this size
    /// then finds everything allocated and compiled. The pipeline calls this with growing sizes
    /// before the first sample. After a failed batch, the zeros replace its data in the buffers.
    ///
    /// # Errors
    /// As [`Worker::run`].
    fn warm_up(&mut self, batch: usize) -> Result<(), EngineError> {
        let _ = batch;
        Ok(())
    }
}

/// Parameters of an engine: the configuration and the model.
#[derive(Clone, Debug)]
pub struct EngineParams {
    /// Configuration of engine and batcher.
    pub engine: EngineConfig,
    /// The model's name, equal on both nodes.
    pub model: String,
    /// The model file; `None` for engines without one, such as `null` and `digest`.
    pub file: Option<PathBuf>,
    /// The configured model. With a model file, it gives the order of the tensors and the ragged
    /// inputs; without one, it is the whole model.
    pub spec: Option<ModelSpec>,
}

impl EngineParams {
    /// Parameters with defaults for an engine of this kind and a model called `opaque`.
    pub fn new(kind: EngineKind) -> Self {
        EngineParams {
            engine: EngineConfig {
                kind,
                ..EngineConfig::default()
            },
            model: "opaque".to_owned(),
            file: None,
            spec: None,
        }
    }

    /// Parameters from the configuration keys that the frontend and the accelerator share.
    pub fn of(
        engine: &EngineConfig,
        model: &str,
        file: Option<&Path>,
        spec: Option<&ModelSpec>,
    ) -> Self {
        EngineParams {
            engine: engine.clone(),
            model: model.to_owned(),
            file: file.map(Into::into),
            spec: spec.cloned(),
        }
    }

    /// The parameters after `change` of the engine's configuration.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut EngineConfig)) -> Self {
        change(&mut self.engine);
        self
    }

    /// True if `input` is configured as ragged: shorter along its first dimension in some samples.
    /// Samples arrive without padding; the engine pads ragged inputs with zeros.
    pub(crate) fn is_ragged(&self, input: &str) -> bool {
        let inputs = self.spec.iter().flat_map(|spec| &spec.inputs);
        inputs.filter(|t| t.ragged).any(|t| t.name == input)
    }

    pub(crate) fn model_file(&self) -> Result<PathBuf, EngineError> {
        self.file.clone().ok_or_else(|| {
            EngineError::param(
                "model.file",
                format!("engine {} needs a model file", self.engine.kind.as_str()),
            )
        })
    }

    pub(crate) fn delay(&self) -> Duration {
        Duration::from_micros(self.engine.delay_us)
    }
}

/// Opens a model file or a file of its weights, unless its first bytes are of a foreign format.
/// `own`: the format of the engine's models, if it has a name.
pub(crate) fn open_model(path: &Path, own: &str) -> Result<File, EngineError> {
    let failed = |e| EngineError::model(path, e);
    let file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    let why = match ForeignFormat::of_file(&file) {
        _ if !meta.is_file() => "is not a file".to_owned(),
        _ if meta.len() == 0 => "is empty: 0 bytes".to_owned(),
        Err(e) => return Err(failed(e)),
        Ok(Some(format)) if format.name != own => {
            format!("is {}", format.text("it is no model of this engine"))
        }
        Ok(_) => return Ok(file),
    };
    Err(EngineError::model(path, why))
}
