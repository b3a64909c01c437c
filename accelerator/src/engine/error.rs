//! Errors of engines, each with what to do.

use std::{
    any::Any,
    fmt::Display,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use qdl::model::Lengths;
use record::secrets;

/// An engine cannot be made, or failed during a run. Each message says what is wrong, on what, and
/// what to do.
#[allow(missing_docs, reason = "the messages are the documentation")]
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("engine.{field}: {reason}")]
    Param { field: &'static str, reason: String },
    #[error("model.{field}: {reason}")]
    TokenModel { field: &'static str, reason: String },
    #[error("{what} not found (looked for {}): {advice}", list(.searched))]
    Missing {
        /// The library and its verb, such as `ONNX Runtime was`.
        what: String,
        searched: Vec<PathBuf>,
        advice: &'static str,
    },
    #[error("{}: {reason}", .path.display())]
    Library { path: PathBuf, reason: String },
    #[error(
        "this ONNX Runtime cannot run on a GPU ({reason}): `pip install onnxruntime-gpu`, name its capi/libonnxruntime.so.* in \
         engine.library or ORT_DYLIB_PATH, and have cuDNN and cuBLAS on LD_LIBRARY_PATH; or set `provider: cpu`"
    )]
    Provider { reason: String },
    #[error("model file {}: {reason}", .path.display())]
    Model { path: PathBuf, reason: String },
    #[error(
        "there is no NVIDIA driver here (no libcuda.so.1): run on a machine with a GPU, or use a model compiled for the CPU"
    )]
    NoDriver,
    #[error("engine.gpu: there is no GPU {index}; this machine has {found}, counted from 0")]
    NoGpu { index: usize, found: usize },
    #[error("engine {engine} reads no slots in the memory of a GPU: {reason}")]
    Slots {
        engine: &'static str,
        reason: String,
    },
    #[error("GPU {gpu}: {verb}: {name} ({text})")]
    Cuda {
        gpu: usize,
        verb: &'static str,
        name: String,
        text: String,
    },
    #[error(
        "GPU {gpu}: {verb}: out of memory, {free_mib} MiB of {total_mib} MiB are free: lower engine.max_batch or engine.threads"
    )]
    GpuMemory {
        gpu: usize,
        verb: &'static str,
        free_mib: usize,
        total_mib: usize,
    },
    #[error("a sample of {got} bytes arrived; the model takes {want}")]
    SampleSize { want: String, got: usize },
    #[error(
        "a prompt holds id {id} at position {position}; model `{model}` has tokens 0 to {}: is the data set another model's?",
        .vocabulary.saturating_sub(1)
    )]
    TokenId {
        model: String,
        id: i32,
        position: usize,
        vocabulary: usize,
    },
    #[error("a response of {need} bytes does not fit the {room} bytes of its slot")]
    OutputRoom { need: usize, room: usize },
    #[error("engine {engine} failed on a batch of {batch}: {reason}")]
    Run {
        engine: &'static str,
        batch: usize,
        reason: String,
    },
    #[error("worker {worker} of engine {engine} panicked: {message}")]
    Panicked {
        engine: &'static str,
        worker: usize,
        message: String,
    },
    /// Of the server that the engine uses.
    #[error("{name}: {reason}")]
    Server { name: String, reason: String },
    #[error(
        "the engine's workers were not ready after {seconds} s: a smaller max_batch warms up faster"
    )]
    StartTimeout { seconds: u64 },
    #[error("engine {engine} was not ready after {seconds} s: its log says how far it came")]
    NotReady { engine: &'static str, seconds: u64 },
    #[error("cannot start a thread for worker {worker}: {source}")]
    Thread { worker: usize, source: io::Error },
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

#[allow(
    clippy::needless_pass_by_value,
    reason = "callers pass the error that they have"
)]
impl EngineError {
    pub(crate) fn param(field: &'static str, reason: impl Into<String>) -> Self {
        EngineError::Param {
            field,
            reason: reason.into(),
        }
    }

    #[cold]
    pub(crate) fn sample_size(lengths: &Lengths, got: usize) -> Self {
        EngineError::SampleSize {
            want: lengths.to_string(),
            got,
        }
    }

    pub(crate) fn run(engine: &'static str, batch: usize, reason: impl Into<String>) -> Self {
        EngineError::Run {
            engine,
            batch,
            reason: reason.into(),
        }
    }

    pub(super) fn server(name: &str, reason: String) -> Self {
        EngineError::Server {
            name: name.to_owned(),
            reason,
        }
    }

    pub(super) fn model(path: &Path, reason: impl ToString) -> Self {
        EngineError::Model {
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }

    pub(super) fn tensor(path: &Path, tensor: &str, reason: impl Display) -> Self {
        EngineError::model(path, format!("tensor `{tensor}`: {reason}"))
    }

    /// The ONNX Runtime library cannot run on a GPU.
    pub(super) fn provider(reason: impl ToString) -> Self {
        EngineError::Provider {
            reason: one_line(&reason.to_string()),
        }
    }

    pub(super) fn library(engine: &str, path: &Path, reason: impl ToString) -> Self {
        let reason = one_line(&reason.to_string());
        EngineError::Library {
            path: path.to_owned(),
            reason: format!("cannot be used by engine {engine} ({reason})"),
        }
    }

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
            EngineError::SampleSize { .. } | EngineError::TokenId { .. } => Fault::Sample,
            EngineError::Run { .. } => Fault::Either,
            _ => Fault::Engine,
        }
    }
}

/// Runs `body`. A panic of it becomes an error with the engine's name and the thread's index
/// `worker`; the caller drops what the panic left undefined.
pub(crate) fn catch_panic<T>(
    engine: &'static str,
    worker: usize,
    body: impl FnOnce() -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|panic| Err(EngineError::panicked(engine, worker, panic.as_ref())))
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
    paths.join(", ")
}

pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The beginning of a foreign text, on one line, for an error message. Values that look like keys
/// are masked, and control and format characters become U+FFFD: a terminal obeys them.
pub(super) fn shorten(text: &str) -> String {
    const MOST: usize = 200;
    let (mut line, mut end) = (String::new(), "");
    let hidden = |c: char| record::is_unprintable(c) && !c.is_whitespace();
    let text = text.replace(hidden, "\u{fffd}");
    for word in text.split_whitespace() {
        if line.chars().count() + word.chars().count() > MOST {
            line.extend(word.chars().take(MOST));
            end = "…";
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    secrets::mask(&line).text + end
}
