//! How many answers were right.

use serde::{Deserialize, Serialize};

/// Answers that were compared with their samples' labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Accuracy {
    /// Share of right answers, from 0 to 1.
    pub share: f64,
    /// Answers that name their sample's label.
    pub right: u64,
    /// Answers.
    pub answers: u64,
    /// Of those, the ones that name no class at all.
    pub unreadable: u64,
}

impl Accuracy {
    /// From the counts.
    pub fn new(right: u64, answers: u64, unreadable: u64) -> Self {
        Accuracy {
            share: right as f64 / answers.max(1) as f64,
            right,
            answers,
            unreadable,
        }
    }
}
