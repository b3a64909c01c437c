//! Reads LoadGen's logs from a run's folder, without C++.

mod accuracy;
mod detail;
mod scenario;

pub use accuracy::{AccuracyLog, AccuracyRecord, LogError};
pub use detail::{Detail, Phase, PhaseKind};
pub use scenario::{Scenario, TestMode};

/// Name of the summary in a run's folder.
pub const SUMMARY: &str = "mlperf_log_summary.txt";
/// Name of the detailed log in a run's folder.
pub const DETAIL: &str = "mlperf_log_detail.txt";
/// Name of the accuracy log in a run's folder.
pub const ACCURACY: &str = "mlperf_log_accuracy.json";
