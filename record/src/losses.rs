//! Losses of accelerators and connections, and refusals of samples.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The connection on which a lost peer was silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SilentOn {
    /// The control connection.
    Control,
    /// A data connection.
    Data,
}

impl SilentOn {
    /// Returns the configuration key of the deadline that the silence exceeded.
    pub fn deadline(self) -> &'static str {
        match self {
            SilentOn::Control => "deadlines.heartbeat_timeout_ms",
            SilentOn::Data => "deadlines.echo_timeout_ms",
        }
    }
}

/// One loss of an accelerator, or of some of its connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LossRecord {
    /// The accelerator's node.
    pub node: String,
    /// True if the accelerator was lost: its session ended or all connections were down at once.
    pub whole: bool,
    /// Time of the first loss, in seconds from the run's first query; `None` before that query.
    pub at_s: Option<f64>,
    /// Reason of the loss.
    pub why: String,
    /// The connection on which the peer was silent; `None` if no silence revealed the loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_on: Option<SilentOn>,
    /// The lost connections, by their indexes at the accelerator.
    pub connections: Vec<u16>,
    /// Number of connections to the accelerator.
    pub of: u64,
    /// Number of losses: exceeds `connections` if a connection was lost again before all were back.
    pub losses: u64,
    /// Samples in flight on the lost connections.
    pub again: u64,
    /// True if the accelerator or its connections came back.
    pub back: bool,
    /// Time of the return, in seconds from the run's first query; `None` before that query.
    pub back_s: Option<f64>,
}

/// Formats an integer with commas between thousands.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Formats a time of the run: `12.3 s into the run`.
fn when(at_s: Option<f64>) -> String {
    match at_s {
        Some(s) => format!("{s:.1} s into the run"),
        None => "before the run's first query".to_owned(),
    }
}

/// One line: the lost peer, time, reason and number of samples in flight.
impl fmt::Display for LossRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LossRecord { node, of, why, .. } = self;
        let who = match (self.whole, &self.connections[..]) {
            (true, _) => node.clone(),
            (false, [one]) => format!("connection {node}/{one}"),
            (false, several) => format!("{} of {of} connections to {node}", several.len()),
        };
        let samples = match self.again {
            0 => "no sample was in flight".to_owned(),
            1 => "1 sample was in flight".to_owned(),
            n => format!("{} samples were in flight", grouped(n)),
        };
        let back = match (self.back, self.back_s) {
            (false, _) => String::new(),
            (true, s) => format!("; back {}", when(s)),
        };
        let at = when(self.at_s);
        write!(f, "{who} lost {at}: {why}; {samples}{back}")
    }
}

/// Maximum length of [`RefusalRecord::kind`], in characters.
const KIND: usize = 48;

/// Refusals of one kind by one accelerator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusalRecord {
    /// The accelerator's node.
    pub node: String,
    /// Beginning that all the reasons share, as [`kind_of`] cuts it: `HTTP 500`.
    pub kind: String,
    /// Number of refusals.
    pub count: u64,
    /// Index of the first sample refused for this kind of reason.
    pub sample: u64,
    /// Reason of the first refusal of this kind.
    pub words: String,
}

/// Returns the kind of a reason: up to 48 characters before the first `: `, ` (` or `;`.
pub fn kind_of(reason: &str) -> String {
    let ends = [": ", " (", ";"].iter().filter_map(|end| reason.find(end));
    let kind = &reason[..ends.min().unwrap_or(reason.len())];
    match kind.char_indices().nth(KIND) {
        Some((end, _)) => {
            let begin = &kind[..end];
            // Cut at a blank, or within the word if the text has no blank.
            let whole = begin.rsplit_once(' ');
            let whole = whole.filter(|_| !kind[end..].starts_with(' '));
            format!("{}…", whole.map_or(begin, |(whole, _)| whole).trim_end())
        }
        None if kind.is_empty() => "no reason given".to_owned(),
        None => kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_one_line() {
        let mut l = LossRecord {
            node: "acc-a".to_owned(),
            whole: true,
            at_s: Some(12.345),
            why: "it was killed".to_owned(),
            connections: vec![0, 1, 2],
            of: 3,
            again: 1_204,
            ..LossRecord::default()
        };
        assert_eq!(
            l.to_string(),
            "acc-a lost 12.3 s into the run: it was killed; 1,204 samples were in flight"
        );
        (l.back, l.back_s) = (true, Some(14.0));
        (l.whole, l.connections, l.again) = (false, vec![1], 1);
        assert_eq!(
            l.to_string(),
            "connection acc-a/1 lost 12.3 s into the run: it was killed; 1 sample was in flight; \
             back 14.0 s into the run"
        );
        l.connections.push(2);
        let text = l.to_string();
        assert!(text.starts_with("2 of 3 connections to acc-a lost 12.3 s into"));
        (l.at_s, l.again, l.back) = (None, 0, false);
        let text = l.to_string();
        assert!(text.contains("lost before the run's first query: it was"));
        assert!(text.ends_with("; no sample was in flight"));
    }

    #[test]
    fn a_kind_is_what_stands_before_a_colon_and_no_longer_than_a_column() {
        assert_eq!(kind_of("HTTP 500: a: b"), "HTTP 500");
        assert_eq!(kind_of("cut stream (after 3): x"), "cut stream");
        assert_eq!(kind_of(""), "no reason given");
        assert_eq!(kind_of(&"ü".repeat(90)).chars().count(), KIND + 1);
        let long = "the prompt of 8,192 tokens is longer than the model's context";
        let begin = "the prompt of 8,192 tokens is longer than the…";
        assert_eq!(kind_of(long), begin);
    }
}
