//! Samples completed in each second of a run.

use serde::{Deserialize, Serialize};

/// Throughput of a run. `None` if the run was too short for the figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThroughputReport {
    /// Samples completed.
    pub completed: u64,
    /// Seconds from the start to the last reading.
    pub duration_s: f64,
    /// Samples per second over `duration_s`.
    pub mean_per_s: f64,
    /// Samples of the slowest full second.
    pub min_per_s: Option<u64>,
    /// Median of the full seconds after the first.
    pub steady_per_s: Option<f64>,
    /// Samples of the first second.
    pub first_per_s: Option<u64>,
    /// Ratio of the first second to the steady state; below 1 after a cold start.
    pub first_over_steady: Option<f64>,
    /// Samples of each full second.
    pub per_second: Vec<u64>,
    /// Samples after the last full second.
    pub rest: u64,
}
