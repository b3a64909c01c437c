//! The setting and the record of a trial.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The setting of a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialSetting {
    /// Whether this is the full run at the end.
    #[serde(default)]
    pub full: bool,
    /// The rate: queries per second, or Offline's expected samples per second.
    pub rate: f64,
    /// Changed keys of the configuration, such as `nics[].connections`, with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub knobs: BTreeMap<String, String>,
    /// Minimum duration, in seconds.
    pub seconds: f64,
    /// Minimum number of queries.
    pub samples: u64,
    /// The seed of LoadGen's random numbers.
    pub seed: u64,
}

/// A limit on latency, with the measured value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialLimit {
    /// Name of the limit, as `p99 latency` or `p99 TTFT`.
    pub name: String,
    /// The measured percentile.
    pub was: f64,
    /// The limit, in the unit of `was`.
    pub bound: f64,
}

impl TrialLimit {
    /// The measured percentile divided by its limit; above 1 the limit is exceeded.
    pub fn part(&self) -> f64 {
        self.was / self.bound.max(f64::MIN_POSITIVE)
    }
}

/// The result of a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// The run's verdict, and whether the system kept up with the rate.
    pub valid: bool,
    /// Why the trial is INVALID, if no limit on latency says it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The limits on latency.
    pub limits: Vec<TrialLimit>,
    /// Queries that the trial needs to be VALID, if its only fault is too few queries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<u64>,
    /// Completed samples per second.
    pub achieved: f64,
    /// Cost of the trial in seconds, including the start and end of the run.
    pub cost_s: f64,
    /// The summary's line on the limiting stage.
    pub limited_by: String,
}

impl TrialRecord {
    /// The limit with the highest [`TrialLimit::part`]: the closest, or the most exceeded.
    pub fn binds(&self) -> Option<&TrialLimit> {
        let parts = |a: &&TrialLimit, b: &&TrialLimit| a.part().total_cmp(&b.part());
        self.limits.iter().max_by(parts)
    }

    /// The verdict as text: VALID with the limit that binds, INVALID with the reason.
    pub fn text(&self) -> String {
        let word = if self.valid { "VALID" } else { "INVALID" };
        let exceeded = |l: &&TrialLimit| self.valid || self.reason.is_empty() || l.part() > 1.0;
        match (self.needs, self.binds().filter(exceeded)) {
            (Some(needs), _) => format!("{word}: too short, it needs {needs} queries"),
            (None, Some(l)) => format!("{word}: {} {:.0} % of its bound", l.name, 100.0 * l.part()),
            (None, None) if self.valid => format!("{word}: {:.0}/s", self.achieved),
            (None, None) => format!("{word}: {}", self.reason),
        }
    }
}

/// Why a session ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// A signal arrived.
    Interrupted,
    /// The budget is spent.
    Budget,
    /// A trial measured nothing, with the reason.
    Unmeasured(String),
}

/// A finished trial: a line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishedTrial {
    /// The trial's setting.
    pub setting: TrialSetting,
    /// The trial's result.
    pub record: TrialRecord,
}

/// The system to be tuned.
pub trait TrialRunner {
    /// Runs one trial. `known` tells the user in one line what the session knows so far.
    ///
    /// # Errors
    /// [`Halt`]: there is no record; the session ends.
    fn run(&mut self, setting: &TrialSetting, known: &str) -> Result<TrialRecord, Halt>;
}
