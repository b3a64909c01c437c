//! A trial's setting and its record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The setting of one trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// The full run at the end.
    #[serde(default)]
    pub full: bool,
    /// Queries per second, samples per query, or Offline's expected samples per second.
    pub rate: f64,
    /// Keys that differ from the configuration: `nics[].connections`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub knobs: BTreeMap<String, String>,
    /// The least duration.
    pub seconds: f64,
    /// The least number of queries.
    pub samples: u64,
    /// The seed of LoadGen's random numbers.
    pub seed: u64,
}

/// One limit on latency.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// `p99 latency`, `p99 TTFT`.
    pub name: String,
    /// The measured percentile.
    pub was: f64,
    /// Its bound, in the same unit.
    pub bound: f64,
}

impl Limit {
    /// The measured percentile as a part of its bound: above 1 the bound is broken.
    pub fn part(&self) -> f64 {
        self.was / self.bound.max(f64::MIN_POSITIVE)
    }
}

/// The result of a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// LoadGen's verdict.
    pub valid: bool,
    /// The limits on latency.
    pub limits: Vec<Limit>,
    /// All bounds are kept, but the trial is INVALID with fewer queries than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<u64>,
    /// Samples per second completed.
    pub achieved: f64,
    /// Seconds of the trial, with its start and end.
    pub cost_s: f64,
    /// The summary's line on the limiting stage, or why a key's value let nothing be measured.
    pub limited_by: String,
}

impl Record {
    /// The limit with the largest part of its bound.
    pub fn binds(&self) -> Option<&Limit> {
        let parts = |a: &&Limit, b: &&Limit| a.part().total_cmp(&b.part());
        self.limits.iter().max_by(parts)
    }

    /// `VALID` or `INVALID`, and the limit that binds.
    pub fn text(&self) -> String {
        let word = if self.valid { "VALID" } else { "INVALID" };
        match (self.needs, self.binds()) {
            (Some(needs), _) => format!("{word}: too short, it needs {needs} queries"),
            (None, Some(l)) => format!("{word}: {} {:.0} % of its bound", l.name, 100.0 * l.part()),
            (None, None) if self.achieved == 0.0 => format!("{word}: {}", self.limited_by),
            (None, None) => format!("{word}: {:.0}/s", self.achieved),
        }
    }
}

/// Why a session ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// A signal.
    Interrupted,
    /// The budget is spent.
    Budget,
    /// A trial measured nothing, with the reason.
    Unmeasured(String),
}

/// A trial that ran: a line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Its setting.
    pub setting: Setting,
    /// Its result.
    pub record: Record,
}

/// Runs trials.
pub trait System {
    /// Runs one trial. `known` says in one line what the session knows before it.
    ///
    /// # Errors
    /// [`Halt`]: there is no record, and the session ends.
    fn run(&mut self, setting: &Setting, known: &str) -> Result<Record, Halt>;
}
