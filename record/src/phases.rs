//! Phases of a run: a submission's accuracy and performance phases, find-peak's steps. LoadGen
//! times each phase separately, so each has its own figures here.

use serde::{Deserialize, Serialize};

use super::{Stage, StageRow, StageTable};

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
    /// True if the latency met LoadGen's bound at that rate.
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
        let per_s = if duration_s > 0.0 {
            (samples as f64 / duration_s * 1000.0).round() / 1000.0
        } else {
            0.0
        };
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
