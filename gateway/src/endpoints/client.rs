//! `result_summary.json` of MLPerf Endpoints' client.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::run_file::read_json;

/// Name of the file in the client's report folder.
pub const FILE: &str = "performance/result_summary.json";
/// Longest file that is read; the client's has some 20 KB.
const LONGEST: u64 = 64 << 20;

/// A client's result. Times are nanoseconds.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClientResult {
    pub n_samples_issued: u64,
    /// Includes the failed ones.
    pub n_samples_completed: u64,
    pub n_samples_failed: u64,
    pub duration_ns: Option<u64>,
    pub complete: bool,
    pub ttft: Option<Series>,
    pub latency: Option<Series>,
    pub output_sequence_lengths: Option<Series>,
    /// Set if `qps` and `tps` are over this window, as for Poisson arrivals.
    pub legacy_loadgen_window_duration_ns: Option<u64>,
    pub finish_reason_counts: BTreeMap<String, u64>,
}

/// The rollup of a series.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Series {
    pub total: Option<f64>,
    /// By percentile in decimal digits, as `50.0`.
    pub percentiles: BTreeMap<String, Option<f64>>,
}

impl Series {
    /// The value at a percentile, if the client has it.
    pub fn at(&self, percentile: f64) -> Option<f64> {
        let is = |key: &str| key.parse() == Ok(percentile);
        let mut all = self.percentiles.iter();
        all.find(|(key, _)| is(key)).and_then(|(_, value)| *value)
    }
}

impl ClientResult {
    /// Reads a client's result: the file, or a report folder that has it.
    ///
    /// # Errors
    /// Names the file, and what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, String> {
        let inside: Option<PathBuf> = path.is_dir().then(|| {
            let whole = path.join(FILE);
            let beside = path.join("result_summary.json");
            if whole.is_file() { whole } else { beside }
        });
        read_json(inside.as_deref().unwrap_or(path), LONGEST)
    }

    /// Completed samples that did not fail.
    pub fn good(&self) -> u64 {
        let (completed, failed) = (self.n_samples_completed, self.n_samples_failed);
        completed.saturating_sub(failed)
    }

    /// Completed samples without a reason for their end, though they did not fail.
    pub fn cut_streams(&self) -> u64 {
        let ended: u64 = self.finish_reason_counts.values().sum();
        self.good().saturating_sub(ended)
    }

    /// Tokens of all answers, as the client's tokenizer counts them.
    pub fn tokens(&self) -> Option<f64> {
        self.output_sequence_lengths.as_ref().and_then(|s| s.total)
    }
}
