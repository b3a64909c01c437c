//! What every engine on an NVIDIA GPU needs: the driver found at run time, streams and events,
//! memory, and the way of a batch from the slots its samples landed in to the GPU and of its
//! outputs back.
//!
//! ```text
//! slots (registered)  s0 s1 s2 .. s7 | s12 s13    runs of neighbours
//!                      \  one copy /    \ one copy /  more than a few runs: one call for all
//! GPU                  [ input of the batch, without gaps ]  on the worker's stream: copies,
//!                      [ output of the batch              ]  kernels, and the copy back
//!                        one copy to pinned memory, and from there to each sample's output slot
//! ```
//!
//! * [`Device`]: one GPU, through the driver that is installed; building needs no CUDA.
//! * `stream`: streams and events; `graph`: kernels recorded once and launched as one.
//! * `memory`: memory on the GPU, and pinned memory beside it.
//! * [`Registry`]: the slots and QSL memory that the GPU may read where they lie.
//! * `slots`: slots in the GPU's own memory, for a NIC to write; a batch of neighbours is read
//!   there, without any copy.
//! * `pieces`: which bytes are copied where; plain data. `copies`: the driver's calls for it.
//! * `inputs`: one worker's inputs and how they get there; `stream_worker`: its stream, kernels and
//!   outputs.
//! * [`Meter`]: what a GPU has done.
//!
//! A worker waits for its own batch. While it does, another worker's batch is being copied, on
//! another stream.

mod copies;
mod device;
mod graph;
mod inputs;
mod memory;
mod meter;
mod pieces;
mod registry;
mod slots;
mod stream;
mod stream_worker;

pub use device::{Device, Direct, Fence};
pub use meter::Meter;
pub use registry::Registry;

pub(super) use graph::Graph;
pub(super) use inputs::Staged;
pub(super) use memory::DeviceMemory;
pub(super) use slots::slots;
pub(super) use stream_worker::StreamWorker;
