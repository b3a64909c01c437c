//! The state of a run in progress, and its pictures.
//!
//! The page of a finished run comes from its folder; this module draws a run that has no folder
//! yet. A terminal can show the same figures from [`SoFar`].

mod pictures;

use std::path::PathBuf;

use record::{
    LimitRecord, latency_bound_us,
    timeline::{ConnectionTick, Timeline},
};

use crate::latency::Latencies;

pub use pictures::so_far;

/// The state of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum State {
    /// Before the first query: connections are made and warmed up, and samples are loaded.
    #[default]
    Before,
    /// LoadGen issues queries.
    Running,
    /// Every sample is answered; logs and pages are being written.
    Ending,
    /// The run has ended.
    Over(RunEnd),
}

/// The end of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunEnd {
    /// The program's exit code.
    pub code: u8,
    /// The verdict: `VALID`, `INVALID`, `COMPLETE` or `FAILED`.
    pub word: String,
    /// Reason of the verdict.
    pub reason: String,
    /// Path of the run's page, if written.
    pub page: Option<PathBuf>,
}

/// A run at one moment. The size is bounded for any length of run.
#[derive(Clone, Debug, Default)]
pub struct SoFar {
    /// Name of the frontend's node.
    pub node: String,
    /// LoadGen's scenario, and its mode unless performance.
    pub title: String,
    /// The fabric; `local` without a network.
    pub fabric: String,
    /// The run's state.
    pub state: State,
    /// Seconds since the first query.
    pub elapsed_s: f64,
    /// Number of issued samples.
    pub issued: u64,
    /// Number of completed samples.
    pub completed: u64,
    /// Samples per second over about the last second.
    pub rate: f64,
    /// Tokens per second over about the last second, if answers are tokens.
    pub token_rate: Option<f64>,
    /// p99 of the time to the first token so far, in microseconds, if answers are tokens.
    pub ttft_us: Option<f64>,
    /// Target rate, in queries per second.
    pub target_qps: Option<f64>,
    /// LoadGen's limits, with the values so far.
    pub limits: Vec<LimitRecord>,
    /// The run's timeline so far.
    pub timeline: Timeline,
    /// Each connection by its name, and its counts since the run began.
    pub connections: Vec<(String, ConnectionTick)>,
}

impl SoFar {
    /// Number of samples in flight.
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

    /// LoadGen's bound on the latency in microseconds, if it has one.
    pub fn bound_us(&self) -> Option<f64> {
        latency_bound_us(&self.limits)
    }

    /// All latencies from `issue_query` to completion, in finished ticks.
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

    /// Verdict so far as flag, word and sentence. `Some(true)`: no limit exceeded, or a good end.
    pub fn verdict(&self) -> (Option<bool>, String, String) {
        let word = |w: &str| w.to_owned();
        match &self.state {
            State::Before => {
                let why = "LoadGen has not issued its first query: samples are loaded, \
                           connections made and warmed up.";
                (None, word("NOT BEGUN"), word(why))
            }
            State::Over(over) => {
                let reason = match over.reason.as_str() {
                    "valid" => "",
                    reason => reason,
                };
                (Some(over.code == 0), over.word.clone(), word(reason))
            }
            State::Ending => {
                let why = "Everything was answered; LoadGen judges the run and writes its logs.";
                (None, word("ENDING"), word(why))
            }
            State::Running => {
                let bounds = self.limits.iter().filter(|l| l.at_most);
                let over = bounds.clone().filter(|l| !l.met).map(|l| l.name.as_str());
                let over: Vec<&str> = over.collect();
                let good = match (over.is_empty(), bounds.count()) {
                    (true, 0) => None,
                    (met, _) => Some(met),
                };
                let said = match over[..] {
                    [] if good.is_some() => word("No measured time is over its bound so far."),
                    [] => word("No bound on latency in this scenario."),
                    _ => format!("Over LoadGen's bound so far: {}.", over.join(", ")),
                };
                (good, word("GOING ON"), said)
            }
        }
    }
}
