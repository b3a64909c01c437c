//! The stages of a sample's way from LoadGen to LoadGen, and their figures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One stretch of a sample's way.
///
/// Those up to [`Stage::Completion`] follow one another and make up [`Stage::Total`];
/// [`Stage::RoundTrip`] is network, queue and compute together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// LoadGen issued it -> its last attempt that failed ended; nothing where none did.
    #[serde(rename = "failed_attempts")]
    Failed,
    /// LoadGen issued it, or an attempt failed -> its write was posted.
    IssueToPost,
    /// The round trip without the accelerator's residence: out and back together. How it splits
    /// into out and back cannot be measured without synchronised clocks.
    Network,
    /// It waited on the accelerator for its batch.
    Queue,
    /// Its batch ran in the engine.
    Compute,
    /// The NIC thread saw the response -> `QuerySamplesComplete` returned. LoadGen's own time of a
    /// sample ends as that call begins; it issues what waits for the sample while the call runs.
    Completion,
    /// Its write was posted -> the NIC thread saw the response.
    RoundTrip,
    /// LoadGen issued it -> `QuerySamplesComplete` returned. One after the other, samples' totals
    /// overlap by what that call takes, and add up to more than the run.
    Total,
}

impl Stage {
    /// How many there are.
    pub const COUNT: usize = 8;

    /// All of them, in the order of the table.
    pub const ALL: [Stage; Stage::COUNT] = [
        Stage::Failed,
        Stage::IssueToPost,
        Stage::Network,
        Stage::Queue,
        Stage::Compute,
        Stage::Completion,
        Stage::RoundTrip,
        Stage::Total,
    ];

    /// Those that follow one another and add up to the total.
    pub const PARTS: [Stage; 6] = [
        Stage::Failed,
        Stage::IssueToPost,
        Stage::Network,
        Stage::Queue,
        Stage::Compute,
        Stage::Completion,
    ];

    /// Its key in JSON, the tag in logs and part of file names.
    pub fn key(self) -> &'static str {
        match self {
            Stage::Failed => "failed_attempts",
            Stage::IssueToPost => "issue_to_post",
            Stage::Network => "network",
            Stage::Queue => "queue",
            Stage::Compute => "compute",
            Stage::Completion => "completion",
            Stage::RoundTrip => "round_trip",
            Stage::Total => "total",
        }
    }

    /// What the table calls it.
    pub fn label(self) -> &'static str {
        match self {
            Stage::Failed => "failed attempts",
            Stage::IssueToPost => "issue -> post",
            Stage::Network => "network, out and back",
            Stage::Queue => "batch wait",
            Stage::Compute => "inference",
            Stage::Completion => "completion",
            Stage::RoundTrip => "round trip",
            Stage::Total => "total",
        }
    }
}

/// One stage in figures; microseconds, to the nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageRow {
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Longest, exact.
    pub max_us: f64,
    /// Mean, exact.
    pub mean_us: f64,
    /// Samples.
    pub count: u64,
}

/// One row per stage. In JSON an object with one key per stage ([`Stage::key`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StageTable(BTreeMap<Stage, StageRow>);

impl StageTable {
    /// From rows in any order.
    pub fn new(rows: impl IntoIterator<Item = (Stage, StageRow)>) -> Self {
        StageTable(rows.into_iter().collect())
    }

    /// One stage's row.
    pub fn get(&self, stage: Stage) -> Option<&StageRow> {
        self.0.get(&stage)
    }

    /// Every row, in the order of the stages.
    pub fn iter(&self) -> impl Iterator<Item = (&Stage, &StageRow)> {
        self.0.iter()
    }

    /// Samples in the table: the highest count of any row.
    pub fn count(&self) -> u64 {
        self.0.values().map(|r| r.count).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_serde() {
        for stage in Stage::ALL {
            let json = serde_json::to_string(&stage).expect("a string");
            assert_eq!(json, format!("\"{}\"", stage.key()));
        }
    }
}
