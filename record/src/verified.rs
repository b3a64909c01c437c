//! Result of comparing every response with the expected one.

use serde::{Deserialize, Serialize};

/// Counts of a run that verified its responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verified {
    /// Responses compared.
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
