//! Accelerators and connections that were lost in a run.

use std::fmt;

use serde::{Deserialize, Serialize};

/// On what a peer was silent until it counted as gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SilentOn {
    /// Its control connection.
    Control,
    /// A data connection.
    Data,
}

impl SilentOn {
    /// The deadline of the configuration that says for how long.
    pub fn deadline(self) -> &'static str {
        match self {
            SilentOn::Control => "deadlines.heartbeat_timeout_ms",
            SilentOn::Data => "deadlines.echo_timeout_ms",
        }
    }
}

/// One loss: an accelerator, or some of its connections, from the first that went.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LossRecord {
    /// The accelerator's node.
    pub node: String,
    /// All of its connections were gone at once, or its session was: the accelerator was lost.
    pub whole: bool,
    /// Seconds from the run's first query; `None` before it.
    pub at_s: Option<f64>,
    /// Why.
    pub why: String,
    /// On what it was silent; `None` where it was not found out by silence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_on: Option<SilentOn>,
    /// The connections that were lost, by their numbers at the accelerator.
    pub connections: Vec<u16>,
    /// Connections to the accelerator.
    pub of: u64,
    /// Losses of connections; more, where some were lost again before all were back.
    pub losses: u64,
    /// Samples that were in flight on them.
    pub again: u64,
    /// It came back.
    pub back: bool,
    /// When, in seconds from the run's first query; `None` before it.
    pub back_s: Option<f64>,
}

/// A whole number with commas between thousands.
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

/// When in a run something was: `12.3 s into the run`.
fn when(at_s: Option<f64>) -> String {
    match at_s {
        Some(s) => format!("{s:.1} s into the run"),
        None => "before the run's first query".to_owned(),
    }
}

/// Who, when, why, and how many samples were in flight: one line.
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
        assert!(
            l.to_string()
                .starts_with("2 of 3 connections to acc-a lost 12.3 s into")
        );
        (l.at_s, l.again, l.back) = (None, 0, false);
        assert!(
            l.to_string()
                .contains("lost before the run's first query: it was")
        );
        assert!(l.to_string().ends_with("; no sample was in flight"));
    }
}
