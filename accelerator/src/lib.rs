//! The accelerator: from a sample in memory to the response in the output slot.
//!
//! ```text
//! NIC threads ── arrived() ──> queue ──> batcher ──> engine worker ──> respond_all() ──> origins
//! ```
//!
//! * [`engine`] runs batches behind one trait (`null`, `digest`, `onnx`, ...), or batches by itself
//!   and answers token by token (`tokens`, ...).
//! * `batcher` decides which samples run together and when: a plain data structure without a clock.
//! * [`pipeline`] connects both: the queue, the worker threads, the counters.
//! * [`pipelines`] has one pipeline for each GPU.
//! * [`node`] builds all of it from a configuration and serves; [`check`] describes the result.
//! * [`cli`] has the command-line parts that the programs share.
//!
//! Only [`node`] knows the network to the frontend. The accelerator binary feeds
//! [`pipelines::Pipelines`] from its NIC threads; `frontend --local` from LoadGen, in one process.

mod batcher;
pub mod check;
pub mod cli;
pub mod engine;
mod event_count;
pub mod node;
pub mod pipeline;
pub mod pipelines;
mod queue;
#[cfg(test)]
mod testkit;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose data stay valid if a thread panics while it holds the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
