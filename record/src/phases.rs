//! The phases of a run: the accuracy and the performance part of a submission, the steps of
//! find-peak. Each is timed by LoadGen on its own, so each has its own figures here.

use serde::{Deserialize, Serialize};

use super::{Stage, StageRow, StageTable};

/// What a phase is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseKind {
    /// Every sample once.
    Accuracy,
    /// The scenario's traffic, measured.
    #[default]
    Performance,
    /// One rate of find-peak.
    Step,
}

/// One phase. The samples of all phases are those of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PhaseRecord {
    /// `accuracy`, `performance`, `step 3`.
    pub name: String,
    /// What it is for.
    pub kind: PhaseKind,
    /// The rate that a step of find-peak asked for, in queries per second.
    pub asked_per_s: Option<f64>,
    /// Whether LoadGen found its bound on latency kept at that rate.
    pub kept: Option<bool>,
    /// Samples recorded in it.
    pub samples: u64,
    /// Seconds from its first sample's issue to its last completion. An accuracy phase loads its
    /// samples in sets, and this holds the loading of all but the first.
    pub duration_s: f64,
    /// Samples per second of that.
    pub per_s: f64,
    /// Where its samples' time went.
    pub stages: StageTable,
}

impl PhaseRecord {
    /// From what was recorded in it.
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

    /// Its row of the stage `total`.
    pub fn total(&self) -> StageRow {
        self.stages.get(Stage::Total).copied().unwrap_or_default()
    }
}
