//! Times and rates of a run: stages of a sample between LoadGen's issue and its completion, phases,
//! throughput.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One stage of a sample.
///
/// The stages up to [`Stage::Completion`] follow one another and add up to [`Stage::Total`].
/// [`Stage::RoundTrip`] is the sum of network, queue and compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Issue -> end of the last failed attempt; 0 without a failed attempt.
    #[serde(rename = "failed_attempts")]
    Failed,
    /// Issue -> a prefill node's first token and handle, with the attempts that failed before; 0
    /// where one node computes the whole answer.
    Prefill,
    /// Issue, end of the last failed attempt, or a prefill node's handle -> post of the write.
    IssueToPost,
    /// The round trip minus the sample's time at the accelerator: both directions together, because
    /// only synchronised clocks could separate them.
    Network,
    /// The sample waits on the accelerator for its batch.
    Queue,
    /// The engine runs the sample's batch.
    Compute,
    /// NIC thread reads the response -> `QuerySamplesComplete` returns. LoadGen's own latency ends
    /// as that call begins; during the call LoadGen issues samples that wait for this one.
    Completion,
    /// Post of the write -> NIC thread reads the response.
    RoundTrip,
    /// A prefill node's first token -> the decode node's first part: the wait for a decode node,
    /// the transfer of the KV cache, and a step. 0 where one node computes the whole answer.
    Transfer,
    /// Issue -> `QuerySamplesComplete` returns. Totals of consecutive samples overlap by the
    /// duration of that call, so their sum can exceed the run.
    Total,
}

/// The values of an enum in the order of a table, each with its key in JSON and its name there.
macro_rules! table {
    ($kind:ident: $($value:ident $key:literal $label:literal)+) => {
        impl $kind {
            /// All values, in the order of the table.
            pub const ALL: [$kind; $kind::COUNT] = [$($kind::$value),+];

            /// Number of values.
            pub const COUNT: usize = [$($kind::$value),+].len();

            /// Returns the key in JSON, which is the tag in logs and part of file names.
            pub fn key(self) -> &'static str {
                match self { $($kind::$value => $key),+ }
            }

            /// Returns the name in the table.
            pub fn label(self) -> &'static str {
                match self { $($kind::$value => $label),+ }
            }
        }
    };
}
pub(crate) use table;

table! { Stage:
    Failed "failed_attempts" "failed attempts"
    Prefill "prefill" "prefill"
    IssueToPost "issue_to_post" "issue to post"
    Network "network" "network"
    Queue "queue" "queue"
    Compute "compute" "compute"
    Completion "completion" "completion"
    RoundTrip "round_trip" "round trip"
    Transfer "transfer" "transfer"
    Total "total" "total"
}

impl Stage {
    /// The consecutive stages, which add up to the total.
    pub const PARTS: [Stage; 7] = [
        Stage::Failed,
        Stage::Prefill,
        Stage::IssueToPost,
        Stage::Network,
        Stage::Queue,
        Stage::Compute,
        Stage::Completion,
    ];

    /// Whether few samples have the stage, or none: a table leaves it out where it is 0.
    pub fn is_rare(self) -> bool {
        matches!(self, Stage::Failed | Stage::Prefill | Stage::Transfer)
    }
}

/// Samples within all of LoadGen's limits on a sample's times, of the phase that LoadGen judged.
/// LoadGen counts those within a limit on the latency. Those within limits on TTFT and TPOT the
/// frontend counts, from `issue_query` on; LoadGen's percentiles cap that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Goodput {
    /// Samples within all limits.
    pub samples: u64,
    /// True if LoadGen's percentiles cap the count: LoadGen's times begin earlier.
    pub at_most: bool,
    /// Tokens of these samples' answers, if answers are tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Share of the phase's samples.
    pub share: f64,
    /// LoadGen's samples per second, times `share`.
    pub per_s: f64,
    /// The run's tokens per second, times the share of its tokens; if answers are tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
}

/// Latencies of one stage in microseconds, with nanosecond resolution.
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
    /// Maximum, exact.
    pub max_us: f64,
    /// Mean, exact.
    pub mean_us: f64,
    /// Number of samples.
    pub count: u64,
}

/// One row per stage. In JSON an object with one key per stage ([`Stage::key`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StageTable(BTreeMap<Stage, StageRow>);

impl StageTable {
    /// Creates the table from rows in any order.
    pub fn new(rows: impl IntoIterator<Item = (Stage, StageRow)>) -> Self {
        StageTable(rows.into_iter().collect())
    }

    /// Returns one stage's row.
    pub fn get(&self, stage: Stage) -> Option<&StageRow> {
        self.0.get(&stage)
    }

    /// Returns every row, in the order of the stages.
    pub fn iter(&self) -> impl Iterator<Item = (&Stage, &StageRow)> {
        self.0.iter()
    }

    /// Returns the number of samples: the maximum count of any row.
    pub fn count(&self) -> u64 {
        self.0.values().map(|r| r.count).max().unwrap_or(0)
    }
}

/// Purpose of a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseKind {
    /// LoadGen issues every sample once.
    Accuracy,
    /// LoadGen measures the scenario's traffic.
    #[default]
    Performance,
    /// LoadGen measures one rate of find-peak.
    Step,
}

/// One phase. The run's samples are the sum over all phases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PhaseRecord {
    /// Name: `accuracy`, `performance`, `step 3`.
    pub name: String,
    /// Purpose of the phase.
    pub kind: PhaseKind,
    /// Target rate of a find-peak step, in queries per second.
    pub asked_per_s: Option<f64>,
    /// True if the latency met LoadGen's bound at the target rate.
    pub kept: Option<bool>,
    /// Samples recorded in the phase.
    pub samples: u64,
    /// Seconds from the first issue to the last completion. Includes loading the sample sets of an
    /// accuracy phase, except the first.
    pub duration_s: f64,
    /// Samples per second over `duration_s`.
    pub per_s: f64,
    /// Latencies of the phase's samples by stage.
    pub stages: StageTable,
}

impl PhaseRecord {
    /// Creates a phase's record from its recorded stages.
    pub fn new(name: String, kind: PhaseKind, stages: StageTable, duration_s: f64) -> Self {
        let samples = stages.count();
        let per_s = rate_per_s(samples, duration_s);
        PhaseRecord {
            name,
            kind,
            samples,
            duration_s,
            per_s,
            stages,
            ..PhaseRecord::default()
        }
    }

    /// Returns the row of the stage `total`.
    pub fn total(&self) -> StageRow {
        self.stages.get(Stage::Total).copied().unwrap_or_default()
    }
}

/// Returns a count per second, to a thousandth; 0 for no time.
pub fn rate_per_s(count: u64, seconds: f64) -> f64 {
    match seconds > 0.0 {
        true => (count as f64 / seconds * 1000.0).round() / 1000.0,
        false => 0.0,
    }
}

/// Throughput of a run. A figure is `None` if the run was too short for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThroughputReport {
    /// Samples completed.
    pub completed: u64,
    /// Seconds from the start to the last reading of the count.
    pub duration_s: f64,
    /// Samples per second over `duration_s`.
    pub mean_per_s: f64,
    /// Samples of the slowest full second.
    pub min_per_s: Option<u64>,
    /// Median number of samples in a full second, without the first second.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenTime;

    #[test]
    fn keys_are_those_of_serde() {
        let keys = [
            &Stage::ALL.map(Stage::key)[..],
            &TokenTime::ALL.map(TokenTime::key),
        ];
        let values = (Stage::ALL, TokenTime::ALL);
        let json = serde_json::to_value(values).expect("two lists");
        assert_eq!(json, serde_json::json!(keys));
    }
}
