//! Samples that accelerators refused, by kind: how often, and in whose words.

use serde::{Deserialize, Serialize};

use super::text;

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

impl RefusalRecord {
    /// Who, what, how often and why: one line.
    pub fn line(&self) -> String {
        let RefusalRecord {
            node,
            kind,
            count,
            sample,
            words,
        } = self;
        let count = text::counted(*count, "request");
        format!("{node} failed {count} ({kind}), the first of sample {sample}: {words}")
    }
}

/// What the headline says beside the verdict: failed requests by kind, and what became of their
/// samples. `nth` counts first, second and third refusals of a sample. `None` without any.
pub fn with_refusals(records: &[RefusalRecord], nth: [u64; 3]) -> Option<String> {
    let all: u64 = nth.iter().sum();
    if all == 0 {
        return None;
    }
    let mut kinds: Vec<(&str, u64)> = Vec::new();
    for r in records {
        match kinds.iter_mut().find(|(kind, _)| *kind == r.kind) {
            Some((_, count)) => *count += r.count,
            None => kinds.push((&r.kind, r.count)),
        }
    }
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let kinds = kinds
        .iter()
        .map(|(k, n)| format!("{k}: {}", text::grouped(*n)));
    let kinds: Vec<_> = kinds.collect();
    let n = text::grouped;
    let [first, second, third] = nth;
    let became = match (first - second.min(first), second, third) {
        (_, 0, 0) => "each answered on a second try".to_owned(),
        (once, twice, 0) => format!(
            "{} answered on a second try, {} on a third",
            n(once),
            n(twice)
        ),
        (.., third) => format!("{} refused three times", text::counted(third, "sample")),
    };
    let (all, kinds) = (n(all), kinds.join(", "));
    Some(format!("failed requests: {all} ({kinds}), {became}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(node: &str, kind: &str, count: u64) -> RefusalRecord {
        RefusalRecord {
            node: node.to_owned(),
            kind: kind.to_owned(),
            count,
            sample: 57,
            words: format!("{kind}: overloaded"),
        }
    }

    #[test]
    fn the_headline_counts_by_kind_and_says_what_became_of_the_samples() {
        let records = [
            record("a", "HTTP 503", 2),
            record("a", "HTTP 500", 9),
            record("b", "HTTP 500", 6),
        ];
        let said = |nth| with_refusals(&records, nth).unwrap_or_default();
        assert_eq!(
            said([17, 0, 0]),
            "failed requests: 17 (HTTP 500: 15, HTTP 503: 2), each answered on a second try"
        );
        assert!(said([15, 2, 0]).ends_with("13 answered on a second try, 2 on a third"));
        assert!(said([15, 1, 1]).ends_with("1 sample refused three times"));
        assert_eq!(with_refusals(&[], [0; 3]), None);
        assert_eq!(
            records[1].line(),
            "a failed 9 requests (HTTP 500), the first of sample 57: HTTP 500: overloaded"
        );
    }

    #[test]
    fn a_kind_is_what_stands_before_a_colon_and_no_longer_than_a_column() {
        assert_eq!(kind_of("HTTP 500: a: b"), "HTTP 500");
        assert_eq!(kind_of("cut stream (after 3): x"), "cut stream");
        assert_eq!(kind_of(""), "no reason given");
        assert_eq!(kind_of(&"ü".repeat(90)).chars().count(), KIND + 1);
    }
}
