//! Errors of engines, each with what to do.

use std::{
    any::Any,
    fmt::Display,
    io,
    path::{Path, PathBuf},
};

/// An engine cannot be made, or failed during a run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A parameter has a value that no engine can use.
    #[error("engine.{field}: {reason}")]
    Param {
        /// Name of the field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },

    /// The model does not take and give token ids.
    #[error("model.{field}: {reason}")]
    TokenModel {
        /// `inputs` or `output`.
        field: &'static str,
        /// What is wrong with it, and the accepted form.
        reason: String,
    },

    /// A library that the engine opens at run time is not installed.
    #[error("{what} not found (looked for {}): {advice}", list(.searched))]
    Missing {
        /// The library and its verb, such as `ONNX Runtime was`.
        what: String,
        /// Every path that was tried.
        searched: Vec<PathBuf>,
        /// What to do.
        advice: &'static str,
    },

    /// A library cannot be opened or lacks a function.
    #[error("{}: {reason}", .path.display())]
    Library {
        /// The file.
        path: PathBuf,
        /// The loader's message, and what to do.
        reason: String,
    },

    /// The ONNX Runtime library lacks the GPU provider.
    #[error(
        "this ONNX Runtime cannot run on a GPU ({reason}): `pip install onnxruntime-gpu`, name its capi/libonnxruntime.so.* in \
         engine.library or ORT_DYLIB_PATH, and have cuDNN and cuBLAS on LD_LIBRARY_PATH; or set `provider: cpu`"
    )]
    Provider {
        /// The available providers, or the runtime's message.
        reason: String,
    },

    /// The model file cannot be read, is invalid, or is for a different target.
    #[error("model file {}: {reason}", .path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },

    /// No NVIDIA driver is installed.
    #[error(
        "there is no NVIDIA driver here (no libcuda.so.1): run on a machine with a GPU, or use a model compiled for the CPU"
    )]
    NoDriver,

    /// The GPU index does not exist.
    #[error("engine.gpu: there is no GPU {index}; this machine has {found}, counted from 0")]
    NoGpu {
        /// The configured index.
        index: usize,
        /// Number of GPUs.
        found: usize,
    },

    /// The engine cannot read slots in GPU memory.
    #[error("engine {engine} reads no slots in the memory of a GPU: {reason}")]
    Slots {
        /// The engine's name.
        engine: &'static str,
        /// The reason.
        reason: String,
    },

    /// A CUDA function failed.
    #[error("GPU {gpu}: {verb}: {name} ({text})")]
    Cuda {
        /// Index of the GPU.
        gpu: usize,
        /// The operation.
        verb: &'static str,
        /// CUDA's name of the error.
        name: String,
        /// CUDA's description of the error.
        text: String,
    },

    /// The GPU is out of memory.
    #[error(
        "GPU {gpu}: {verb}: out of memory, {free_mib} MiB of {total_mib} MiB are free: lower engine.max_batch or engine.threads"
    )]
    GpuMemory {
        /// Index of the GPU.
        gpu: usize,
        /// The operation.
        verb: &'static str,
        /// Free MiB at that moment.
        free_mib: usize,
        /// Total MiB.
        total_mib: usize,
    },

    /// The model does not accept a sample of this length.
    #[error("a sample of {got} bytes arrived; the model takes {want}")]
    SampleSize {
        /// The accepted length, in words.
        want: String,
        /// Bytes that arrived.
        got: usize,
    },

    /// The data of a compressed sample is invalid.
    #[error("a compressed sample that cannot be undone: {reason}")]
    Corrupt {
        /// What is wrong with it.
        reason: String,
    },

    /// Memory for decompressed samples cannot be allocated.
    #[error("decompressed samples: {reason}; lower engine.max_batch or engine.threads")]
    Decompress {
        /// The system's error.
        reason: String,
    },

    /// A prompt holds an id outside the model's vocabulary.
    #[error(
        "a prompt holds id {id} at position {position}; model `{model}` has tokens 0 to {}: is the data set another model's?",
        .vocabulary.saturating_sub(1)
    )]
    TokenId {
        /// The model's name.
        model: String,
        /// The id.
        id: i32,
        /// Position of the id, from 0.
        position: usize,
        /// Size of the model's vocabulary.
        vocabulary: usize,
    },

    /// A response does not fit its slot.
    #[error("a response of {need} bytes does not fit the {room} bytes of its slot")]
    OutputRoom {
        /// Bytes of the response.
        need: usize,
        /// Bytes of the slot.
        room: usize,
    },

    /// A batch failed.
    #[error("engine {engine} failed on a batch of {batch}: {reason}")]
    Run {
        /// The engine's name.
        engine: &'static str,
        /// Samples in the batch.
        batch: usize,
        /// The runtime's message.
        reason: String,
    },

    /// A worker panicked.
    #[error("worker {worker} of engine {engine} panicked: {message}")]
    Panicked {
        /// The engine's name.
        engine: &'static str,
        /// Index of the worker.
        worker: usize,
        /// The panic's message.
        message: String,
    },

    /// A language model's server cannot be reached, or failed.
    #[error("server {url}: {reason}")]
    Server {
        /// The server's address.
        url: String,
        /// What is wrong, and what to do.
        reason: String,
    },

    /// The workers were not ready in time.
    #[error(
        "the engine's workers were not ready after {seconds} s: a smaller max_batch warms up faster"
    )]
    StartTimeout {
        /// Time limit.
        seconds: u64,
    },

    /// An engine that batches by itself was not ready in time.
    #[error("engine {engine} was not ready after {seconds} s: its log says how far it came")]
    NotReady {
        /// The engine's name.
        engine: &'static str,
        /// Time limit.
        seconds: u64,
    },

    /// A worker thread could not be started.
    #[error("cannot start a thread for worker {worker}: {source}")]
    Thread {
        /// Index of the worker.
        worker: usize,
        /// The system's error.
        source: io::Error,
    },
}

/// The cause of an error of [`Worker::run`](super::Worker::run).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A sample; other samples can run.
    Sample,
    /// A sample or the engine: the runtime's message does not say.
    Either,
    /// The engine; no batch can run any more.
    Engine,
}

impl EngineError {
    /// An error of the model file.
    pub(super) fn model(path: &Path, reason: impl ToString) -> Self {
        EngineError::Model {
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }

    /// An error of one tensor of the model file.
    pub(super) fn tensor(path: &Path, tensor: &str, reason: impl Display) -> Self {
        EngineError::model(path, format!("tensor `{tensor}`: {reason}"))
    }

    /// The ONNX Runtime library cannot run on a GPU.
    pub(super) fn provider(reason: impl ToString) -> Self {
        EngineError::Provider {
            reason: one_line(&reason.to_string()),
        }
    }

    /// A library that `engine` cannot use.
    pub(super) fn library(engine: &str, path: &Path, reason: impl ToString) -> Self {
        let reason = one_line(&reason.to_string());
        EngineError::Library {
            path: path.to_owned(),
            reason: format!("cannot be used by engine {engine} ({reason})"),
        }
    }

    /// The panic of a worker of `engine`.
    pub(crate) fn panicked(engine: &'static str, worker: usize, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        EngineError::Panicked {
            engine,
            worker,
            message: text.unwrap_or_else(|| "no message".to_owned()),
        }
    }

    /// The cause of this error.
    pub fn fault(&self) -> Fault {
        match self {
            EngineError::SampleSize { .. }
            | EngineError::Corrupt { .. }
            | EngineError::TokenId { .. } => Fault::Sample,
            EngineError::Run { .. } => Fault::Either,
            _ => Fault::Engine,
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
    paths.join(", ")
}

/// A message of several lines as one line.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
