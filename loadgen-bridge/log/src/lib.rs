//! Reads LoadGen's logs from a run's folder, without C++.

mod accuracy;
mod detail;
mod scenario;

use std::{fs::File, io, path::Path};

pub use accuracy::{AccuracyLog, AccuracyRecord, LogError};
pub use detail::{Detail, Phase, PhaseKind};
pub use scenario::{Scenario, TestMode};

/// Opens a plain file for reading. A pipe or a device is an error, since reading it may wait for
/// ever.
///
/// # Errors
/// The path is no plain file, or the system cannot open it.
pub fn open_file(path: &Path) -> io::Result<File> {
    if !path.metadata()?.is_file() {
        let why = "it is no plain file: a folder, a pipe or a device";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    File::open(path)
}

/// Name of the summary in a run's folder.
pub const SUMMARY: &str = "mlperf_log_summary.txt";
/// Name of the detailed log in a run's folder.
pub const DETAIL: &str = "mlperf_log_detail.txt";
/// Name of the accuracy log in a run's folder.
pub const ACCURACY: &str = "mlperf_log_accuracy.json";
