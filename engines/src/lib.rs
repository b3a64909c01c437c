//! Engines: from a sample in memory to the response in the output slot.
//!
//! ```text
//! NIC threads ── arrived() ──> queue ──> batcher ──> engine worker ──> respond_all() ──> origins
//! ```
//!
//! * [`Engine`] is one trait for all engines. Some run batches (`null`, `digest`, `onnx`, ...);
//!   others batch by themselves and answer token by token (`tokens`, ...). The row of each is in
//!   its folder (`entry`). `null` and `digest` answer small samples on the NIC thread ([`Inline`]).
//! * `batcher` decides which samples run together and when: a plain data structure without a clock.
//! * [`pipeline`] connects engine and batcher: the queue, the worker threads, the counters.
//! * [`pipelines`] has one pipeline for each GPU.
//! * [`trust`] says whether code that was found may run.
//!
//! This crate knows no network. In the program `accelerator`, NIC threads pass samples to
//! [`pipelines::Pipelines`]; in `frontend --local`, LoadGen does, in the same process.

mod aoti;
mod batch;
mod batcher;
mod child;
pub mod config;
mod content;
mod cuda;
mod digest;
mod engine;
mod entry;
mod error;
mod event_count;
mod llm;
mod llm_server;
mod onnx;
pub mod pipeline;
pub mod pipelines;
mod queue;
mod search;
mod size_counts;
pub mod streaming;
mod table;
pub mod tensorrt;
pub mod tokens;
mod workers;

/// The engines. The row of each stands in its folder.
static ENGINES: [&entry::EngineEntry; 9] = [
    &digest::DIGEST,
    &digest::NULL,
    &onnx::ENTRY,
    &aoti::ENTRY,
    &tensorrt::ENTRY,
    &tokens::ENTRY,
    &llm_server::HTTP,
    &llm_server::VLLM,
    &llm::ENTRY,
];

#[cfg(test)]
#[allow(dead_code, reason = "the tests in `tests` use more of it")]
#[path = "../tests/common/processes.rs"]
mod processes;
#[cfg(test)]
#[allow(dead_code, reason = "the tests in `tests` use more of it")]
#[path = "../tests/common/samples.rs"]
mod samples;
#[cfg(test)]
mod testkit;

pub use batch::{Batch, BatchCounts, SampleRun};
pub use config::{EngineConfig, EngineKind, MAX_BATCH};
pub use content::{Hashed, Hashing, onnx_data_files};
pub use digest::{Answers as DigestAnswers, Digest};
pub(crate) use engine::{ANY_INPUT, open_model};
pub use engine::{Engine, EngineParams, Inline, Worker};
pub use error::{EngineError, Fault};
pub(crate) use error::{catch_panic, one_line};
#[cfg(feature = "testkit")]
pub use llm_server::fuzz_server_events;
pub use llm_server::{ModelFolder, has_vllm_run, newest_vllm};
pub use search::trust;
pub use size_counts::SizeCounts;
pub use streaming::{Sequence, SequenceOutcome, SequenceSource, ServerCounts, Streaming};
pub use table::{create, describe};
pub use tokens::Tokens;

/// First call of each program: keeps the limit of open files for child processes. If this process
/// is a child that builds a plan for TensorRT, builds the plan and exits.
pub fn begin() {
    child::keep_open_files();
    tensorrt::build_if_asked();
}
