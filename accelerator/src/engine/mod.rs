//! What runs a batch: the engine trait, and one file or folder per engine.
//!
//! An [`Engine`] is shared by all threads and makes one [`Worker`] for each worker thread; a worker
//! owns whatever may not be shared (an ONNX Runtime session, a CUDA stream). The pipeline calls
//! [`Engine::worker`] *on* the thread that the worker will live on, so that contexts bound to a
//! thread and first-touch memory are right.
//!
//! Overlapping copies with compute needs no more than several workers: while one waits for its
//! stream, another one's batch is being copied.

pub mod aoti;
mod batch;
mod child;
mod content;
pub mod cuda;
mod decompress;
mod digest;
mod error;
pub mod http;
pub(crate) mod lengths;
pub mod llm;
mod null;
pub mod onnx;
mod onnx_data;
mod outputs;
mod python;
mod sizes;
pub mod streaming;
pub mod tensorrt;
pub mod tokens;
mod unpack;

use std::{path::PathBuf, sync::Arc, time::Duration};

use fabric::Region;
use qdl::{config::EngineConfig, model::ModelSpec, rails::Score, serve::Arrival};
use record::{GpuRecord, PrefixCache};

pub use batch::{Batch, BatchCounts, Run};
pub use content::{Hashed, Hashing};
pub use decompress::{Decompressed, Decompressor};
pub use digest::{Answers as DigestAnswers, Digest};
pub(crate) use error::panic_message;
pub use error::{EngineError, Fault};
pub(crate) use lengths::Lengths;
pub use null::Null;
pub use onnx_data::files as onnx_data_files;
pub use qdl::config::EngineKind;
pub use streaming::{Sequence, Streaming};
pub use tokens::Tokens;

/// Largest batch that anything here is asked for.
pub const MAX_BATCH: usize = 65_536;

/// A model, ready to make workers.
pub trait Engine: Send + Sync {
    /// The engine's name in configs and reports: `null`, `digest`, `onnx`, `aoti`, `tensorrt`,
    /// `tokens`, `http`, `llm`.
    fn name(&self) -> &'static str;

    /// What the model takes and gives, per sample.
    fn model(&self) -> &ModelSpec;

    /// True where every sample is as good as another, whatever its length: then none is refused for
    /// it before it reaches the engine.
    fn takes_any_bytes(&self) -> bool {
        false
    }

    /// Makes the worker of one thread; called on that thread, `index` counts from 0.
    ///
    /// # Errors
    /// Whatever keeps the model from being loaded once more. An engine that batches by itself has
    /// none.
    fn worker(&self, index: usize) -> Result<Box<dyn Worker>, EngineError> {
        let _ = index;
        Err(EngineError::Param {
            field: "kind",
            reason: format!(
                "engine `{}` batches by itself and has no workers",
                self.name()
            ),
        })
    }

    /// True where an answer is token ids at their true number, so that their count is the engine's
    /// own: what LoadGen may be told.
    fn counts_tokens(&self) -> bool {
        false
    }

    /// Whether it keeps what it computed of a prompt for later prompts that begin like it; `None`
    /// where it has nothing that could. Known once the engine has started.
    fn prefix_cache(&self) -> Option<PrefixCache> {
        None
    }

    /// The engine as one that batches by itself, where it does: then it has no workers.
    fn streaming(&self) -> Option<&dyn Streaming> {
        None
    }

    /// The engine's short cut past queue and worker threads, where it has one: then samples are
    /// answered on the NIC thread that brought them, with no wake-up.
    fn inline(&self) -> Option<&dyn Inline> {
        None
    }

    /// Most samples of a batch, where the model's own batch dimension is fixed: then every batch is
    /// run at that size, and the outputs of what fills it up are thrown away.
    fn fixed_batch(&self) -> Option<usize> {
        None
    }

    /// Told of each piece of memory that samples will lie in, before the first of them
    /// ([`qdl::serve::Service::memory`]).
    fn memory(&self, inputs: &Arc<Region>) {
        let _ = inputs;
    }

    /// Memory of its GPU for slots, at least `bytes` of it; what lands there is read in place
    /// ([`qdl::serve::Service::slots`]).
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

    /// How well inputs come from the memory they landed in to the GPU; nothing where there is no
    /// such way.
    fn interior(&self, now_ns: u64) -> Option<Score> {
        let _ = now_ns;
        None
    }

    /// True where samples are answered on the NIC thread that brought them.
    fn runs_inline(&self) -> bool {
        self.inline().is_some()
    }
}

/// One thread's means to run batches.
pub trait Worker {
    /// Runs the batch: reads every input, writes every output and its length.
    ///
    /// # Errors
    /// [`EngineError::fault`] says what follows. A sample's fault: the batch is run again, sample
    /// by sample, and each sample that fails alone is refused. The engine's fault ends the node.
    /// Where it may be either's, [`Worker::warm_up`] decides: an engine that fails on zeros is
    /// broken. Nothing that a frontend sends may make this panic.
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError>;

    /// Runs `batch` samples of zeros and throws the answers away, so that the first real batch of
    /// that size finds everything allocated and compiled. Called with growing sizes before the
    /// first sample arrives, and after a batch that failed: it clears what that batch left in the
    /// buffers.
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

/// What an engine is made from: the configuration, and the model that it is to run.
#[derive(Clone, Debug)]
pub struct EngineParams {
    /// What the configuration says of engine and batcher.
    pub engine: EngineConfig,
    /// The model's name, equal on both nodes.
    pub model: String,
    /// The model file; `null` and `digest` need none.
    pub file: Option<PathBuf>,
    /// Largest sample in bytes, for `null` and `digest`, which take any bytes.
    pub max_input: usize,
    /// Bytes of a response of `null`.
    pub output_bytes: usize,
    /// Lets `null` and `digest` answer on the NIC thread where they pretend no compute.
    pub inline: bool,
    /// Inputs of an ONNX model that may be shorter along their first dimension. They travel at
    /// their true length and are padded with zeros here.
    pub ragged: Vec<String>,
    /// What the configuration says of the model, for engines whose model file may not say it.
    pub spec: Option<ModelSpec>,
}

impl EngineParams {
    /// An engine of this kind with every default, for a model called `opaque`.
    pub fn new(kind: EngineKind) -> Self {
        EngineParams {
            engine: EngineConfig {
                kind,
                ..EngineConfig::default()
            },
            model: "opaque".to_owned(),
            file: None,
            max_input: 150_528,
            output_bytes: 8,
            inline: true,
            ragged: Vec::new(),
            spec: None,
        }
    }

    /// The same with other settings of the engine.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut EngineConfig)) -> Self {
        change(&mut self.engine);
        self
    }

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
        at_least_one("max_batch", self.engine.max_batch)?;
        at_least_one("threads", self.engine.threads)?;
        at_least_one("intra_threads", self.engine.intra_threads)?;
        at_least_one("max_input", self.max_input)?;
        if self.engine.max_batch > MAX_BATCH {
            return Err(EngineError::Param {
                field: "max_batch",
                reason: format!("{} is more than {MAX_BATCH}", self.engine.max_batch),
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

    /// One line for people: engine, model file, library, and how it makes batches.
    pub fn says(&self) -> String {
        let engine = &self.engine;
        let mut line = engine.kind.as_str().to_owned();
        if let Some(file) = &self.file {
            line += &format!(", model file {}", file.display());
        }
        if matches!(engine.kind, EngineKind::Onnx | EngineKind::Llm)
            && let Ok(library) = onnx::find_library(engine.library.as_deref())
        {
            line += &format!(", ONNX Runtime {}", library.display());
        }
        if let Some(batches) = batching(engine) {
            line += &format!(", batches of {batches}");
        }
        if matches!(engine.kind, EngineKind::Onnx | EngineKind::Llm) {
            line += &format!(", intra_threads {}", engine.intra_threads);
        }
        line
    }

    /// `delay_us` as a duration.
    pub(crate) fn delay(&self) -> Duration {
        Duration::from_micros(self.engine.delay_us)
    }
}

/// The rule for an engine's batches, in one line; `None` where the engine batches by itself.
pub fn batching(engine: &EngineConfig) -> Option<String> {
    if matches!(
        engine.kind,
        EngineKind::Tokens | EngineKind::Http | EngineKind::Llm
    ) {
        return None;
    }
    let mut line = format!(
        "up to {} samples, {} at a time, after {} us at most",
        engine.max_batch,
        engine.workers(),
        engine.max_delay_us
    );
    if let Some(us) = engine.latency_us {
        line += &format!(", answers due after {us} us");
    }
    if !engine.batch_sizes.is_empty() {
        line += &format!(", of sizes {:?}", engine.batch_sizes);
    }
    if engine.begin_apart_us > 0 {
        line += &format!(", begun {} us apart", engine.begin_apart_us);
    }
    Some(line)
}

/// Makes the engine that `params` names. Models are loaded here once, so that a bad one is found at
/// the start.
///
/// # Errors
/// Everything that [`EngineError`] knows of before the first batch.
pub fn create(params: &EngineParams) -> Result<Arc<dyn Engine>, EngineError> {
    params.check()?;
    Ok(match params.engine.kind {
        EngineKind::Null => Arc::new(Null::new(params)),
        EngineKind::Digest => Arc::new(Digest::new(params)),
        EngineKind::Onnx => Arc::new(onnx::Onnx::open(params)?),
        EngineKind::Aoti => Arc::new(aoti::Aoti::open(params)?),
        EngineKind::TensorRt => Arc::new(tensorrt::TensorRtEngine::open(params)?),
        EngineKind::Tokens => Arc::new(Tokens::new(params)?),
        EngineKind::Http => Arc::new(http::Http::open(params)?),
        EngineKind::Llm => Arc::new(llm::Llm::open(params)?),
        other => {
            return Err(EngineError::Param {
                field: "kind",
                reason: format!("this build has no engine `{}`", other.as_str()),
            });
        }
    })
}
