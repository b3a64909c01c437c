//! What came of comparing every response with what it must be.

use serde::{Deserialize, Serialize};

/// Counts of a run that verified its responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verified {
    /// Responses compared.
    pub compared: u64,
    /// Of those, and of first tokens, the ones that were not their sample's.
    pub mismatches: u64,
    /// Responses that came twice or to nothing, and first tokens likewise.
    pub duplicates: u64,
    /// Samples never answered.
    pub lost: u64,
}

impl Verified {
    /// Whether nothing was wrong.
    pub fn sound(&self) -> bool {
        (self.mismatches, self.duplicates, self.lost) == (0, 0, 0)
    }
}
