//! The accelerator's half of the house: from a sample that has landed in memory to the response in
//! the output slot.
//!
//! ```text
//! NIC threads ── arrived() ──> queue ──> batcher ──> engine worker ──> respond_all() ──> origins
//! ```
//!
//! * [`engine`] runs batches: `null`, `digest` and `onnx` behind one trait; or it batches by itself
//!   and answers token by token: `tokens`.
//! * `batcher` decides which samples run together and when: a plain data structure, the clock
//!   passed in.
//! * [`pipeline`] is the shell around both: the queue, the worker threads, the counters.
//! * [`pipelines`] has one of them for each GPU.
//!
//! * [`node`] makes all of it from a configuration and hangs it on the network; [`check`] says what
//!   that came to.
//!
//! * [`cli`] is what the command lines of the programs have in common.
//!
//! Nothing but [`node`] knows a socket. The accelerator binary feeds the [`pipelines::Pipelines`]
//! from its NIC threads; `frontend --local` feeds the same from LoadGen, in one process.

mod batcher;
pub mod check;
pub mod cli;
pub mod engine;
mod event_count;
pub mod node;
pub mod pipeline;
pub mod pipelines;
