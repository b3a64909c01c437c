//! A run that goes on: what is known of it, and its pictures.
//!
//! The page of a run that is over reads what lies in its folder; this is the same of one that has
//! no folder yet. Whoever draws it elsewhere, as in a terminal, has the same figures.

mod pictures;

use std::path::PathBuf;

use record::{
    Figures, LimitRecord,
    timeline::{ConnectionTick, Timeline},
};

use crate::latency::Latencies;

pub use pictures::so_far;

/// How a run goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum State {
    /// LoadGen has issued nothing: connections are made and warmed up, samples are loaded.
    #[default]
    Before,
    /// It goes on.
    Running,
    /// Everything was answered; logs and pages are being written.
    Ending,
    /// It is over.
    Over(Over),
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Over {
    /// The exit code.
    pub code: u8,
    /// `VALID`, `INVALID`, `COMPLETE`, `FAILED`.
    pub word: String,
    /// Why.
    pub reason: String,
    /// Its page, where one was written.
    pub page: Option<PathBuf>,
}

/// A run at one moment. Every part of it is bounded, however long the run is.
#[derive(Clone, Debug, Default)]
pub struct SoFar {
    /// The frontend's node.
    pub node: String,
    /// LoadGen's scenario, and its mode where that is not performance.
    pub title: String,
    /// The fabric, `local` where there is none.
    pub fabric: String,
    /// How it goes.
    pub state: State,
    /// Since the first query.
    pub elapsed_s: f64,
    /// Samples issued.
    pub issued: u64,
    /// Samples completed.
    pub completed: u64,
    /// Samples per second over about the last second.
    pub rate: f64,
    /// Tokens per second likewise, where answers are tokens.
    pub token_rate: Option<f64>,
    /// p99 of the time to the first token so far in microseconds, likewise.
    pub ttft_us: Option<f64>,
    /// The rate that was asked for.
    pub target_qps: Option<f64>,
    /// LoadGen's limits, and how far they are met by now.
    pub limits: Vec<LimitRecord>,
    /// The run along its own clock.
    pub timeline: Timeline,
    /// Each connection by its name, and its counts since the run began.
    pub connections: Vec<(String, ConnectionTick)>,
    /// Each NIC by its name, or each thread that completes samples where there is none.
    pub nics: Vec<(String, Figures)>,
}

impl SoFar {
    /// Samples in flight.
    pub fn in_flight(&self) -> u64 {
        self.issued.saturating_sub(self.completed)
    }

    /// Samples per second since the first query.
    pub fn mean_rate(&self) -> f64 {
        match self.elapsed_s {
            s if s > 0.0 => self.completed as f64 / s,
            _ => 0.0,
        }
    }

    /// LoadGen's bound on latency in microseconds, where it has one.
    pub fn bound_us(&self) -> Option<f64> {
        let bound = self.limits.iter().find(|l| l.at_most)?;
        Some(bound.limit)
    }

    /// All latencies so far, from `issue_query` to the completion, in ticks that are over.
    fn latencies(&self) -> Latencies {
        let mut all = Latencies::default();
        for tick in &self.timeline.ticks {
            all.add(&tick.latency);
        }
        all
    }

    /// Quantiles of all latencies so far in microseconds, within 6 %.
    pub fn quantiles_us<const N: usize>(&self, of: [f64; N]) -> [Option<f64>; N] {
        let all = self.latencies();
        of.map(|q| all.quantile_us(q))
    }

    /// In a word and a sentence how it goes; `Some(true)` where everything is as it should be.
    pub fn verdict(&self) -> (Option<bool>, String, String) {
        let word = |w: &str| w.to_owned();
        match &self.state {
            State::Before => (
                None,
                word("NOT BEGUN"),
                word(
                    "LoadGen has not issued its first query: samples are loaded, connections made and \
                     warmed up.",
                ),
            ),
            State::Over(over) => {
                let reason = match over.reason.as_str() {
                    "valid" => "",
                    reason => reason,
                };
                (Some(over.code == 0), over.word.clone(), word(reason))
            }
            State::Ending => (
                None,
                word("ENDING"),
                word("Everything was answered; LoadGen judges the run and writes its logs."),
            ),
            State::Running => {
                let bounds = self.limits.iter().filter(|l| l.at_most);
                let over: Vec<&str> = bounds
                    .clone()
                    .filter(|l| !l.met)
                    .map(|l| l.name.as_str())
                    .collect();
                let good = match (over.is_empty(), bounds.count()) {
                    (true, 0) => None,
                    (met, _) => Some(met),
                };
                let said = match over[..] {
                    [] if good.is_some() => word("Within every bound on latency so far."),
                    [] => word("No bound on latency in this scenario."),
                    _ => format!("Over LoadGen's bound so far: {}.", over.join(", ")),
                };
                (good, word("GOING ON"), said)
            }
        }
    }
}
