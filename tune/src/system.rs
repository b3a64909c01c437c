//! Run this setting, give me a record.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

/// What one trial is to run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// What is searched for: queries per second, samples per query, or the rate that Offline is
    /// told to expect.
    pub rate: f64,
    /// Knobs that differ from the configuration, by their keys: `nics[0].connections`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub knobs: BTreeMap<String, String>,
    /// The shortest that the run may be.
    pub seconds: f64,
    /// For LoadGen's random numbers.
    pub seed: u64,
}

/// One limit on what was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// As in `p99 latency`, `p99 TTFT`.
    pub name: String,
    /// The measured percentile, in any unit.
    pub was: f64,
    /// The most that it may be, in the same unit.
    pub bound: f64,
}

impl Limit {
    /// The logarithm of what was measured over the bound: above 0 it was not kept.
    pub fn log_margin(&self) -> f64 {
        (self.was.max(f64::MIN_POSITIVE) / self.bound.max(f64::MIN_POSITIVE)).ln()
    }
}

/// What a trial came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// LoadGen's word.
    pub valid: bool,
    /// What was measured against each limit on latency.
    pub limits: Vec<Limit>,
    /// Samples per second that were completed.
    pub achieved: f64,
    /// Seconds that the trial took, its start and end included.
    pub cost_s: f64,
    /// What limited the run, as its summary says.
    #[serde(default)]
    pub limited_by: String,
    /// The part of the budget that was spent behind it. The session fills it in, and keeps what it
    /// was where a trial is given again: a session that goes on may have another budget.
    #[serde(default)]
    pub part: Option<f64>,
}

/// How far above 0 the margin of a run lies that kept its bounds and is INVALID nonetheless.
const JUST_ABOVE: f64 = 1e-3;
/// The largest margin that is told apart from others: a queue that grows without end says no more.
const FAR: f64 = 5.0;

impl Record {
    /// The logarithm of the margin to the nearest limit: below 0 all were kept. It never
    /// contradicts LoadGen's word: early stopping, for one, may find a run INVALID that kept its
    /// bounds by a hair.
    pub fn log_margin(&self) -> f64 {
        let worst = self.binds().map_or(0.0, Limit::log_margin);
        let worst = if worst.is_nan() { FAR } else { worst };
        if self.valid {
            worst.clamp(-FAR, -JUST_ABOVE)
        } else {
            worst.clamp(JUST_ABOVE, FAR)
        }
    }

    /// The limit that was nearest, or exceeded the most.
    pub fn binds(&self) -> Option<&Limit> {
        let margin = |l: &&Limit| l.log_margin();
        self.limits
            .iter()
            .max_by(|a, b| margin(a).total_cmp(&margin(b)))
    }
}

/// Why a session ends before its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// Somebody wants it to.
    Interrupted,
    /// What it may cost is spent.
    Budget,
    /// A trial measured nothing: why.
    Unmeasured(String),
}

/// What a trial is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// To find out roughly where the limit is.
    Bracket,
    /// To find out how far from the limit it is, near it.
    Near,
    /// To see whether the system is still the one that it was.
    Anchor,
    /// To certify a rate.
    Certify,
    /// One half of a pair.
    Pair,
    /// The full run at the end: the only one that is a result.
    Confirm,
}

impl Why {
    /// One word for people.
    pub fn word(self) -> &'static str {
        match self {
            Why::Bracket => "bracket",
            Why::Near => "near",
            Why::Anchor => "anchor",
            Why::Certify => "certify",
            Why::Pair => "pair",
            Why::Confirm => "confirm",
        }
    }
}

/// A trial that was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// From 1.
    pub number: usize,
    /// What for.
    pub why: Why,
    /// What was run.
    pub setting: Setting,
    /// What it came to.
    pub record: Record,
}

/// Whatever can be run at a rate.
pub trait System {
    /// Runs a setting.
    ///
    /// # Errors
    /// [`Halt`]: there is no record, and the session ends.
    fn run(&mut self, why: Why, setting: &Setting) -> Result<Record, Halt>;
}

/// Who hears of a session while it goes on.
pub trait Tell {
    /// A trial has run; `believes` is what the session thinks now, in one line.
    fn trial(&mut self, trial: &Trial, believes: &str) {
        let _ = (trial, believes);
    }

    /// Something to be said: drift, a knob that was chosen.
    fn note(&mut self, text: &str) {
        let _ = text;
    }
}

impl Tell for () {}

/// A system whose first trials have been run before: they are given again as they came, without
/// running anything, for as long as the same settings are asked for.
pub struct Replay<'a> {
    past: VecDeque<Trial>,
    system: &'a mut dyn System,
    /// How many were given again.
    pub replayed: usize,
}

impl<'a> Replay<'a> {
    /// Trials of before, in their order, and what runs those that follow.
    pub fn new(past: Vec<Trial>, system: &'a mut dyn System) -> Self {
        Replay {
            past: past.into(),
            system,
            replayed: 0,
        }
    }
}

impl System for Replay<'_> {
    fn run(&mut self, why: Why, setting: &Setting) -> Result<Record, Halt> {
        match self.past.pop_front() {
            None => self.system.run(why, setting),
            Some(trial) if trial.why == why && trial.setting == *setting => {
                self.replayed += 1;
                Ok(trial.record)
            }
            Some(trial) => Err(Halt::Unmeasured(format!(
                "the journal's trial {} is not the one that this session would run: it ran at {} to {}, and {} to {} is \
                 asked for; begin again in another folder",
                trial.number,
                trial.setting.rate,
                trial.why.word(),
                setting.rate,
                why.word()
            ))),
        }
    }
}
