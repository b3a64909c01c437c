//! Correctness of answers: against labels, and against the expected responses.

use serde::{Deserialize, Serialize};

/// Counts of answers that were compared with their samples' labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Accuracy {
    /// Share of correct answers, from 0 to 1.
    pub share: f64,
    /// Answers that name their sample's label.
    pub right: u64,
    /// Number of answers.
    pub answers: u64,
    /// Of `answers`, those that name no class.
    pub unreadable: u64,
}

impl Accuracy {
    /// Computes the share from the counts.
    pub fn new(right: u64, answers: u64, unreadable: u64) -> Self {
        Accuracy {
            share: right as f64 / answers.max(1) as f64,
            right,
            answers,
            unreadable,
        }
    }
}

/// Counts of a run that verified its responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verified {
    /// Number of responses compared with the expected ones.
    pub compared: u64,
    /// Of the compared responses and first tokens, those that do not belong to their sample.
    pub mismatches: u64,
    /// Responses and first tokens that arrived twice or without a sample.
    pub duplicates: u64,
    /// Samples that were never answered.
    pub lost: u64,
}

impl Verified {
    /// Returns whether verification found no error.
    pub fn sound(&self) -> bool {
        (self.mismatches, self.duplicates, self.lost) == (0, 0, 0)
    }
}
