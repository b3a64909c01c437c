//! Errors of engines, each with what to do.

use std::{io, path::PathBuf};

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

    /// ONNX Runtime is not installed.
    #[error(
        "ONNX Runtime was not found (looked for {}): run `cargo xtask setup`, or name the library in engine.library or ORT_DYLIB_PATH",
        list(.searched)
    )]
    LibraryMissing {
        /// Every path that was tried.
        searched: Vec<PathBuf>,
    },

    /// The file is not a usable ONNX Runtime library.
    #[error("{}: not a usable ONNX Runtime library ({reason}): run `cargo xtask setup` for the one this was built for", .path.display())]
    LibraryInvalid {
        /// The file.
        path: PathBuf,
        /// The loader's message.
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

    /// The model file cannot be read.
    #[error("model file {}: {source}", .path.display())]
    ModelMissing {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// ONNX Runtime cannot load the model file.
    #[error("model file {}: not a model that ONNX Runtime can load ({reason})", .path.display())]
    ModelInvalid {
        /// The file.
        path: PathBuf,
        /// ONNX Runtime's message.
        reason: String,
    },

    /// An input or output of the model is not supported.
    #[error("model file {}: tensor `{tensor}`: {reason}", .path.display())]
    ModelUnsupported {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },

    /// PyTorch is not installed.
    #[error(
        "PyTorch's libraries were not found (looked for {}): `pip install torch`, or name their folder in engine.library or QDL_TORCH",
        list(.searched)
    )]
    TorchMissing {
        /// Every path that was tried.
        searched: Vec<PathBuf>,
    },

    /// TensorRT, or the shim over it, was not found.
    #[error("{what} was not found (looked for {}): {advice}", list(.searched))]
    TensorRtMissing {
        /// Which of the two.
        what: String,
        /// Every path that was tried.
        searched: Vec<PathBuf>,
        /// What to do.
        advice: String,
    },

    /// A library cannot be opened or lacks a function.
    #[error("{}: cannot be used by engine {engine} ({reason})", .path.display())]
    Library {
        /// The engine.
        engine: &'static str,
        /// The file.
        path: PathBuf,
        /// The loader's message.
        reason: String,
    },

    /// The compiled model is invalid, or for a different target.
    #[error("model file {}: {reason}", .path.display())]
    Package {
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

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
