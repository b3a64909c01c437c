//! Samples that accelerators refused, by kind: how often, and in whose words.

use serde::{Deserialize, Serialize};

/// Most characters of a kind.
const KIND: usize = 48;

/// Refusals of one kind by one accelerator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusalRecord {
    /// The accelerator's node.
    pub node: String,
    /// What its reasons begin with, up to a colon: `HTTP 500`.
    pub kind: String,
    /// How many.
    pub count: u64,
    /// The index of the first sample that was refused so.
    pub sample: u64,
    /// The reason that was given for that one.
    pub words: String,
}

/// The kind of a reason: what stands before the first `: `, ` (` or `;`.
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
