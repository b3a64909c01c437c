//! Histograms and ticks that threads fill during a run; their results are types of [`record`].
//! Counts without a histogram are counted in those types where they occur.
//!
//! A NIC thread owns a [`Recorder`] and shares only the figures in [`Live`], which a progress
//! thread reads. At the end of a run, the recorders are merged into one set of [`Histograms`].
//!
//! Clocks of two nodes are never compared. The accelerator reports durations, the frontend measures
//! the round trip, and the time in the network is the difference.

mod histograms;
mod live;
mod sample;
mod throughput;
pub mod ticks;
mod tokens;
mod values;

pub use histograms::Histograms;
pub use live::Live;
pub use sample::{SampleTimes, TokenLimits};
pub use throughput::Throughput;
pub use ticks::Recorder;
pub(crate) use tokens::TokenHistograms;
pub use tokens::TokenSizes;
pub use values::Octaves;
