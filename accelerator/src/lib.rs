//! The accelerator: from a sample in memory to the response in the output slot.
//!
//! ```text
//! NIC threads ── arrived() ──> queue ──> batcher ──> engine worker ──> respond_all() ──> origins
//! ```
//!
//! * [`engine`] has one trait for all engines. Some run batches (`null`, `digest`, `onnx`, ...);
//!   others batch by themselves and answer token by token (`tokens`, ...).
//! * `batcher` decides which samples run together and when: a plain data structure without a clock.
//! * [`pipeline`] connects engine and batcher: the queue, the worker threads, the counters.
//! * [`pipelines`] has one pipeline for each GPU.
//! * [`node`] builds a node from a configuration and serves; [`check`] describes the node.
//! * [`entry`] is the program `accelerator`; [`cli`] has the command-line parts that the programs
//!   share.
//! * [`trust`] says whether code that was found may run.
//! * [`metrics`] has the figures for monitoring, and [`web`] the HTTP server for pages and figures.
//!
//! Only [`node`] knows the network to the frontend. In the program `accelerator`, NIC threads pass
//! samples to [`pipelines::Pipelines`]; in `frontend --local`, LoadGen does, in the same process.

mod allocator;
mod batcher;
pub mod check;
pub mod cli;
pub mod engine;
pub mod entry;
mod event_count;
pub mod metrics;
pub mod node;
pub mod pipeline;
pub mod pipelines;
mod queue;
mod size_counts;
#[cfg(test)]
mod testkit;
pub mod web;

pub use allocator::Allocator;
#[cfg(feature = "testkit")]
pub use engine::fuzz_server_events;
pub use engine::trust;
pub use size_counts::SizeCounts;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What each program does first: sets the allocator up, makes a file above `ulimit -f` an error of
/// the write, keeps the limit of open files for child processes, and where it is a child that
/// builds an engine for TensorRT, builds it and ends.
pub fn begin() {
    allocator::keep_freed_memory();
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    engine::keep_open_files();
    engine::tensorrt::build_if_asked();
}

/// Locks a mutex whose data stay valid if a thread panics while it holds the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
