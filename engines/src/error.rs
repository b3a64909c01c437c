//! Errors of engines, each with what to do.

use std::{
    any::Any,
    fmt::{self, Display},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use qdl::model::Lengths;
use record::secrets;

/// An engine cannot be made, or failed during a run. The line says what is wrong, on what, and what
/// to do.
#[derive(Debug)]
pub struct EngineError {
    fault: Fault,
    line: String,
}

impl Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for EngineError {}

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
    /// An error for which `fault` is the cause.
    #[cold]
    pub fn new(fault: Fault, line: impl Into<String>) -> Self {
        let line = line.into();
        EngineError { fault, line }
    }

    /// An error of the engine, its library or its machine.
    pub(crate) fn engine(line: impl Into<String>) -> Self {
        EngineError::new(Fault::Engine, line)
    }

    /// A key of `engine` in the configuration that is wrong.
    pub fn param(field: &str, reason: impl Display) -> Self {
        EngineError::engine(format!("engine.{field}: {reason}"))
    }

    /// A sample of `got` bytes, which the model cannot take.
    pub(crate) fn sample_size(lengths: &Lengths, got: usize) -> Self {
        let line = format!("a sample of {got} bytes arrived; the model takes {lengths}");
        EngineError::new(Fault::Sample, line)
    }

    /// A response of `need` bytes for a slot of `room` bytes.
    pub(crate) fn output_room(need: usize, room: usize) -> Self {
        EngineError::engine(format!(
            "a response of {need} bytes does not fit the {room} bytes of its slot"
        ))
    }

    /// A batch that failed, because of a sample or of the engine.
    pub fn run(engine: &str, batch: usize, reason: impl Display) -> Self {
        let line = format!("engine {engine} failed on a batch of {batch}: {reason}");
        EngineError::new(Fault::Either, line)
    }

    pub(super) fn model(path: &Path, reason: impl Display) -> Self {
        EngineError::engine(format!("model file {}: {reason}", path.display()))
    }

    pub(super) fn tensor(path: &Path, tensor: &str, reason: impl Display) -> Self {
        EngineError::model(path, format!("tensor `{tensor}`: {reason}"))
    }

    /// An engine that cannot read slots in GPU memory.
    pub(super) fn slots(engine: &str, reason: &str) -> Self {
        EngineError::engine(format!(
            "engine {engine} reads no slots in the memory of a GPU: {reason}"
        ))
    }

    /// The ONNX Runtime library cannot run on a GPU.
    pub(super) fn provider(reason: impl Display) -> Self {
        let reason = one_line(&reason.to_string());
        EngineError::engine(format!(
            "this ONNX Runtime cannot run on a GPU ({reason}): `pip install onnxruntime-gpu`, name \
             its capi/libonnxruntime.so.* in engine.library or ORT_DYLIB_PATH, and have cuDNN and \
             cuBLAS on LD_LIBRARY_PATH; or set `provider: cpu`"
        ))
    }

    pub(super) fn library(engine: &str, path: &Path, reason: impl Display) -> Self {
        let reason = one_line(&reason.to_string());
        let path = path.display();
        EngineError::engine(format!(
            "{path}: cannot be used by engine {engine} ({reason})"
        ))
    }

    pub(crate) fn panicked(engine: &str, worker: usize, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "no message".to_owned());
        EngineError::engine(format!(
            "worker {worker} of engine {engine} panicked: {text}"
        ))
    }

    pub(crate) fn thread(worker: usize, e: &io::Error) -> Self {
        EngineError::engine(format!("cannot start a thread for worker {worker}: {e}"))
    }

    /// The cause of this error.
    pub fn fault(&self) -> Fault {
        self.fault
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
