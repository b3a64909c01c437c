//! Counters and histograms that threads fill during a run. They do not know the summary: `run` and
//! the programs turn the counts into a `record`.
//!
//! A NIC thread owns a [`Recorder`]. It shares with other threads only the figures in [`Live`],
//! which a progress thread reads. The end of the run merges the recorders into one set of
//! [`Histograms`].
//!
//! Clocks of two nodes are never compared: the accelerator reports durations, the frontend measures
//! the round trip, and `network` is the difference.

mod connection;
mod histograms;
mod live;
mod sample;
mod throughput;
pub mod ticks;
mod tokens;
mod values;

pub use connection::{ConnectionCounts, PathCounts};
pub(crate) use connection::{ConnectionReading, NicTimes};
pub use histograms::Histograms;
pub use live::Live;
pub use sample::SampleTimes;
pub use throughput::Throughput;
pub use ticks::Recorder;
pub use tokens::{TokenHistograms, TokenSizes};
