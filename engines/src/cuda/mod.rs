//! Common parts of the engines on an NVIDIA GPU: the driver, found at run time; streams, events
//! and memory; the copies of a batch's inputs to the GPU, and of its outputs back.
//!
//! ```text
//! slots (registered)  s0 s1 s2 .. s7 | s12 s13    runs of neighbours
//!                      \  one copy /    \ one copy /  more than a few runs: one call for all
//! GPU                  [ input of the batch, without gaps ]  on the worker's stream: copies,
//!                      [ output of the batch              ]  kernels, and the copy back
//!                        one copy to pinned memory, and from there to each sample's output slot
//! ```
//!
//! * [`Device`]: one GPU, through the installed driver; the build needs no CUDA.
//! * [`Gpu`]: the GPU of one engine, with the counts and times of its batches.
//! * `stream`: streams, events, and recorded kernels, launched with one call.
//! * `memory`: GPU memory and pinned host memory.
//! * `registry`: slots and QSL memory, registered so that GPUs can read them in place.
//! * `slots`: slots in GPU memory that a NIC writes. Kernels read a contiguous batch in these slots
//!   without a copy.
//! * `pieces`: the copies of a batch as plain data.
//! * `inputs`: a worker's inputs; `stream_worker`: a worker's stream, kernels and outputs.
//!
//! While a worker waits for its batch, other workers copy their batches on other streams.

mod device;
mod gpu;
mod inputs;
mod memory;
mod pieces;
mod registry;
mod slots;
mod stream;
mod stream_worker;

pub use device::{Device, Fence};
pub use gpu::Gpu;

pub(super) use gpu::Staged;
pub(super) use memory::DeviceMemory;
pub(super) use stream::KernelGraph;
pub(super) use stream_worker::StreamWorker;
