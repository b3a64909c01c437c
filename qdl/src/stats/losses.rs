//! Accelerators and connections that were lost in a run, each loss in one line.

use serde::{Deserialize, Serialize};

use super::text;

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

/// When in a run something was: `12.3 s into the run`.
fn when(at_s: Option<f64>) -> String {
    match at_s {
        Some(s) => format!("{s:.1} s into the run"),
        None => "before the run's first query".to_owned(),
    }
}

impl LossRecord {
    /// Who, when, why, and how many samples were in flight: one line.
    pub fn line(&self) -> String {
        let LossRecord { node, of, why, .. } = self;
        let who = match (self.whole, &self.connections[..]) {
            (true, _) => node.clone(),
            (false, [one]) => format!("connection {node}/{one}"),
            (false, several) => format!("{} of {of} connections to {node}", several.len()),
        };
        let samples = match self.again {
            0 => "no sample was in flight".to_owned(),
            1 => "1 sample was in flight".to_owned(),
            n => format!("{} samples were in flight", text::grouped(n)),
        };
        let back = match (self.back, self.back_s) {
            (false, _) => String::new(),
            (true, s) => format!("; back {}", when(s)),
        };
        let at = when(self.at_s);
        format!("{who} lost {at}: {why}; {samples}{back}")
    }
}

/// What the headline says beside the verdict: accelerators that were lost, when the first of them
/// was. Nothing where no accelerator was; connections that came again are the losses' own lines.
pub fn with_losses(losses: &[LossRecord]) -> Option<String> {
    let mut whole: Vec<_> = losses.iter().filter(|l| l.whole).collect();
    whole.sort_by(|a, b| a.at_s.unwrap_or(0.0).total_cmp(&b.at_s.unwrap_or(0.0)));
    let first = whole.first()?;
    let at = |s: Option<f64>| match s {
        Some(s) => format!("at {s:.1} s"),
        None => "before the first query".to_owned(),
    };
    let mut nodes: Vec<_> = whole.iter().map(|l| &l.node).collect();
    nodes.sort();
    nodes.dedup();
    Some(match (nodes.len(), whole.len()) {
        (1, 1) => {
            let back = match (first.back, first.back_s) {
                (false, _) => String::new(),
                (true, s) => format!(" and back {}", at(s)),
            };
            format!("with one accelerator lost {}{back}", at(first.at_s))
        }
        (1, n) => format!(
            "with one accelerator lost {n} times, first {}",
            at(first.at_s)
        ),
        (n, _) => format!("with {n} accelerators lost, the first {}", at(first.at_s)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(node: &str, at_s: Option<f64>) -> LossRecord {
        LossRecord {
            node: node.to_owned(),
            whole: true,
            at_s,
            why: "it was killed".to_owned(),
            connections: vec![0, 1, 2],
            of: 3,
            losses: 3,
            again: 1_204,
            ..LossRecord::default()
        }
    }

    #[test]
    fn a_loss_is_one_line() {
        let mut l = loss("acc-a", Some(12.345));
        assert_eq!(
            l.line(),
            "acc-a lost 12.3 s into the run: it was killed; 1,204 samples were in flight"
        );
        (l.back, l.back_s) = (true, Some(14.0));
        (l.whole, l.connections, l.again) = (false, vec![1], 1);
        assert_eq!(
            l.line(),
            "connection acc-a/1 lost 12.3 s into the run: it was killed; 1 sample was in flight; \
             back 14.0 s into the run"
        );
        l.connections.push(2);
        assert!(
            l.line()
                .starts_with("2 of 3 connections to acc-a lost 12.3 s into")
        );
        (l.at_s, l.again, l.back) = (None, 0, false);
        assert!(
            l.line()
                .contains("lost before the run's first query: it was")
        );
        assert!(l.line().ends_with("; no sample was in flight"));
    }

    #[test]
    fn the_headline_names_how_many_and_when() {
        let said = |losses: &[LossRecord]| with_losses(losses).unwrap_or_default();
        let a = loss("a", Some(12.3));
        assert_eq!(
            said(std::slice::from_ref(&a)),
            "with one accelerator lost at 12.3 s"
        );
        let (back, back_s) = (true, Some(14.0));
        let back = LossRecord {
            back,
            back_s,
            ..a.clone()
        };
        let both = "with one accelerator lost at 12.3 s and back at 14.0 s";
        assert_eq!(said(std::slice::from_ref(&back)), both);
        let twice = [back, loss("a", Some(20.0))];
        assert_eq!(
            said(&twice),
            "with one accelerator lost 2 times, first at 12.3 s"
        );
        let two = [a.clone(), loss("b", Some(3.0))];
        assert_eq!(said(&two), "with 2 accelerators lost, the first at 3.0 s");
        let part = LossRecord { whole: false, ..a };
        assert_eq!(said(&[part]), "");
        assert_eq!(said(&[]), "");
    }
}
