//! What can go wrong with an engine, and what to do about it.

use std::{io, path::PathBuf};

/// An engine that cannot be made, or that failed while it ran.
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

    /// A model that is none of token ids.
    #[error("model.{field}: {reason}")]
    TokenModel {
        /// `inputs` or `output`.
        field: &'static str,
        /// What is wrong with it, and what would be right.
        reason: String,
    },

    /// ONNX Runtime is nowhere.
    #[error(
        "ONNX Runtime was not found (looked for {}): run `cargo xtask setup`, or name the library in engine.library or ORT_DYLIB_PATH",
        list(.searched)
    )]
    LibraryMissing {
        /// Every path that was tried.
        searched: Vec<PathBuf>,
    },

    /// A file that is no ONNX Runtime, or none that can be used.
    #[error("{}: not a usable ONNX Runtime library ({reason}): run `cargo xtask setup` for the one this was built for", .path.display())]
    LibraryInvalid {
        /// The file.
        path: PathBuf,
        /// The loader's own words.
        reason: String,
    },

    /// An ONNX Runtime that was built without what is wanted of it.
    #[error(
        "this ONNX Runtime cannot run on a GPU ({reason}): `pip install onnxruntime-gpu`, name its capi/libonnxruntime.so.* in \
         engine.library or ORT_DYLIB_PATH, and have cuDNN and cuBLAS on LD_LIBRARY_PATH; or set `provider: cpu`"
    )]
    Provider {
        /// What it has, or its own words.
        reason: String,
    },

    /// A model file that cannot be read.
    #[error("model file {}: {source}", .path.display())]
    ModelMissing {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },

    /// A file that is no model.
    #[error("model file {}: not a model that ONNX Runtime can load ({reason})", .path.display())]
    ModelInvalid {
        /// The file.
        path: PathBuf,
        /// ONNX Runtime's own words.
        reason: String,
    },

    /// A model whose inputs or outputs cannot be served.
    #[error("model file {}: tensor `{tensor}`: {reason}", .path.display())]
    ModelUnsupported {
        /// The file.
        path: PathBuf,
        /// Which tensor.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },

    /// PyTorch is nowhere.
    #[error(
        "PyTorch's libraries were not found (looked for {}): `pip install torch`, or name their folder in engine.library or QDL_TORCH",
        list(.searched)
    )]
    TorchMissing {
        /// Every path that was tried.
        searched: Vec<PathBuf>,
    },

    /// TensorRT, or the shim over it, is nowhere.
    #[error("{what} was not found (looked for {}): {advice}", list(.searched))]
    TensorRtMissing {
        /// Which of the two.
        what: String,
        /// Every path that was tried.
        searched: Vec<PathBuf>,
        /// What to do.
        advice: String,
    },

    /// A library that cannot be opened or lacks a function.
    #[error("{}: cannot be used by engine {engine} ({reason})", .path.display())]
    Library {
        /// The engine.
        engine: &'static str,
        /// The file.
        path: PathBuf,
        /// The loader's own words.
        reason: String,
    },

    /// A compiled model that is none, or is for something else.
    #[error("model file {}: {reason}", .path.display())]
    Package {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },

    /// No driver.
    #[error(
        "there is no NVIDIA driver here (no libcuda.so.1): run on a machine with a GPU, or use a model compiled for the CPU"
    )]
    NoDriver,

    /// A driver without that GPU.
    #[error("engine.gpu: there is no GPU {index}; this machine has {found}, counted from 0")]
    NoGpu {
        /// What was asked for.
        index: usize,
        /// How many there are.
        found: usize,
    },

    /// Slots that cannot be in the memory of a GPU.
    #[error("engine {engine} reads no slots in the memory of a GPU: {reason}")]
    Slots {
        /// The engine's name.
        engine: &'static str,
        /// Why.
        reason: String,
    },

    /// A CUDA function that failed.
    #[error("GPU {gpu}: {verb}: {name} ({text})")]
    Cuda {
        /// Which GPU.
        gpu: usize,
        /// What was being done.
        verb: &'static str,
        /// CUDA's name of the error.
        name: String,
        /// CUDA's own words.
        text: String,
    },

    /// No memory left on the GPU.
    #[error(
        "GPU {gpu}: {verb}: out of memory, {free_mib} MiB of {total_mib} MiB are free: lower engine.max_batch or engine.threads"
    )]
    GpuMemory {
        /// Which GPU.
        gpu: usize,
        /// What was being done.
        verb: &'static str,
        /// MiB free at that moment.
        free_mib: usize,
        /// MiB in all.
        total_mib: usize,
    },

    /// A sample whose length the model cannot have.
    #[error("a sample of {got} bytes arrived; the model takes {want}")]
    SampleSize {
        /// What it takes, in words.
        want: String,
        /// Bytes that arrived.
        got: usize,
    },

    /// A sample that is to be compressed, and is not as it should be.
    #[error("a compressed sample that cannot be undone: {reason}")]
    Corrupt {
        /// What is wrong with it.
        reason: String,
    },

    /// No memory for decompressed samples.
    #[error("decompressed samples: {reason}; lower engine.max_batch or engine.threads")]
    Decompress {
        /// What the system says.
        reason: String,
    },

    /// A prompt with an id that is no token of the model's.
    #[error(
        "a prompt holds id {id} at position {position}; model `{model}` has tokens 0 to {}: is the data set another model's?",
        .vocabulary.saturating_sub(1)
    )]
    TokenId {
        /// The model's name.
        model: String,
        /// The id.
        id: i32,
        /// Where it is, from 0.
        position: usize,
        /// How many tokens the model has.
        vocabulary: usize,
    },

    /// A response that does not fit its slot.
    #[error("a response of {need} bytes does not fit the {room} bytes of its slot")]
    OutputRoom {
        /// Bytes of the response.
        need: usize,
        /// Bytes of the slot.
        room: usize,
    },

    /// A batch that failed.
    #[error("engine {engine} failed on a batch of {batch}: {reason}")]
    Run {
        /// The engine's name.
        engine: &'static str,
        /// Samples in the batch.
        batch: usize,
        /// The runtime's own words.
        reason: String,
    },

    /// A worker that panicked.
    #[error("worker {worker} of engine {engine} panicked: {message}")]
    Panicked {
        /// The engine's name.
        engine: &'static str,
        /// Which worker.
        worker: usize,
        /// The panic's message.
        message: String,
    },

    /// A language model's server that cannot be asked, or not any more.
    #[error("server {url}: {reason}")]
    Server {
        /// Where it is, or was to be.
        url: String,
        /// What is wrong, and what to do.
        reason: String,
    },

    /// Workers that were not ready in time.
    #[error(
        "the engine's workers were not ready after {seconds} s: a smaller max_batch warms up faster"
    )]
    StartTimeout {
        /// How long they were given.
        seconds: u64,
    },

    /// An engine that batches by itself, and was not ready in time.
    #[error("engine {engine} was not ready after {seconds} s: its log says how far it came")]
    NotReady {
        /// The engine's name.
        engine: &'static str,
        /// How long it was given.
        seconds: u64,
    },

    /// A worker thread that could not be started.
    #[error("cannot start a thread for worker {worker}: {source}")]
    Thread {
        /// Which worker.
        worker: usize,
        /// What the system says.
        source: io::Error,
    },
}

/// Whose fault an error of [`Worker::run`](super::Worker::run) is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A sample's: others can be run.
    Sample,
    /// A sample's or the engine's: the runtime's words do not say.
    Either,
    /// The engine's: nothing can be run any more.
    Engine,
}

impl EngineError {
    /// Whose fault it is.
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

/// The words of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
