//! Refusals by accelerators: counts by kind, and example reasons.

use serde::{Deserialize, Serialize};

/// Maximum number of characters of a kind.
const KIND: usize = 48;

/// Refusals of one kind by one accelerator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusalRecord {
    /// The accelerator's node.
    pub node: String,
    /// Begin of the reasons, up to a colon: `HTTP 500`.
    pub kind: String,
    /// Number of refusals.
    pub count: u64,
    /// Index of the first sample refused for this kind of reason.
    pub sample: u64,
    /// Reason of that first refusal.
    pub words: String,
}

/// Returns the kind of a reason: the text before the first `: `, ` (` or `;`.
pub fn kind_of(reason: &str) -> String {
    let ends = [": ", " (", ";"].iter().filter_map(|end| reason.find(end));
    let kind = &reason[..ends.min().unwrap_or(reason.len())];
    match kind.char_indices().nth(KIND) {
        Some((end, _)) => format!("{}…", &kind[..end]),
        None if kind.is_empty() => "no reason given".to_owned(),
        None => kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_what_stands_before_a_colon_and_no_longer_than_a_column() {
        assert_eq!(kind_of("HTTP 500: a: b"), "HTTP 500");
        assert_eq!(kind_of("cut stream (after 3): x"), "cut stream");
        assert_eq!(kind_of(""), "no reason given");
        assert_eq!(kind_of(&"ü".repeat(90)).chars().count(), KIND + 1);
    }
}
