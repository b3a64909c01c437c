//! LoadGen's log files: their folder, their paths, and whether LoadGen traces.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::LoadgenError;

/// The fields of LoadGen's `LogSettings` that a run may set: names and copies of the logs are
/// LoadGen's defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    /// The folder of the logs. [`run_test`](crate::run_test) creates a missing folder.
    pub outdir: PathBuf,
    /// Whether LoadGen traces every query, which costs more than half of the maximum rate.
    pub enable_trace: bool,
}

/// Paths of a run's log files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogFiles {
    /// The summary, for people.
    pub summary: PathBuf,
    /// The detailed log, for the submission checker.
    pub detail: PathBuf,
    /// The accuracy log: the responses.
    pub accuracy: PathBuf,
    /// The trace; empty unless `enable_trace`.
    pub trace: PathBuf,
}

impl LogSettings {
    /// Paths of a run's log files.
    pub fn files(&self) -> LogFiles {
        let path = |name: &str| self.outdir.join(name);
        LogFiles {
            summary: path("mlperf_log_summary.txt"),
            detail: path("mlperf_log_detail.txt"),
            accuracy: path("mlperf_log_accuracy.json"),
            trace: path("mlperf_log_trace.json"),
        }
    }

    /// Creates the folder and checks that the log files can be written. LoadGen without writable
    /// logs prints to stderr, runs nothing, and reports no error.
    pub(crate) fn prepare(&self) -> Result<(), LoadgenError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| LoadgenError::LogFile { path, error }
        };
        fs::create_dir_all(&self.outdir).map_err(failed(&self.outdir))?;
        let files = self.files();
        for path in [&files.summary, &files.detail, &files.accuracy, &files.trace] {
            // LoadGen truncates the files too.
            let open = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .open(path);
            open.map_err(failed(path))?;
        }
        Ok(())
    }
}
