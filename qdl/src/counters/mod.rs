//! What threads count and record while a run goes on. Nothing here knows a summary: `run` and the
//! programs put the counts on `record`.
//!
//! A NIC thread owns a [`Recorder`] and shares nothing with the others but the figures it shows in
//! [`Live`], which a progress thread reads. At the end the recorders are merged into one set of
//! [`Histograms`].
//!
//! Two nodes' clocks are never compared: the accelerator reports durations, the frontend knows the
//! round trip, and `network` is the difference.

mod connection;
mod histograms;
mod live;
mod sample;
mod throughput;
pub mod ticks;
mod tokens;

pub use connection::{ConnectionCounts, ConnectionReading, NicTimes, PathCounts};
pub use histograms::Histograms;
pub use live::Live;
pub use sample::SampleTimes;
pub use throughput::Throughput;
pub use ticks::Recorder;
pub use tokens::{TokenHistograms, TokenSizes};
