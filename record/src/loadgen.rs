//! LoadGen's result of a run, beside this program's own measurements.
//!
//! What limited a run follows from the values of [`LimitRecord`], the scheduled and completed
//! rates, and [`LoadgenRecord::late_mean_us`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::StageRow;

/// Latencies that LoadGen computed, in microseconds: from a sample's scheduled time to its
/// completion. In MultiStream, latencies of whole queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadgenLatency {
    /// The minimum.
    pub min_us: f64,
    /// The mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// The 90th percentile.
    pub p90_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    pub p999_us: f64,
    /// The maximum.
    pub max_us: f64,
}

/// Time from a sample's scheduled time to `issue_query`: the stage before the recorder's first.
///
/// LoadGen does not report scheduled times. Means add up, so the mean is exact; percentiles do not,
/// so the record has upper bounds for them. `mean_us` and the means of the stages up to completion
/// add up to LoadGen's mean latency and `told_us`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScheduledToIssue {
    /// Mean in microseconds: LoadGen's mean latency minus the mean of `total`, plus `told_us`.
    pub mean_us: f64,
    /// Mean duration of `QuerySamplesComplete` in microseconds, measured for a share of the calls.
    /// The stages `completion` and `total` include it; LoadGen's latency ends at the call's begin.
    pub told_us: f64,
    /// Upper bound of the median.
    pub p50_at_most_us: f64,
    /// Upper bound of the 90th percentile.
    pub p90_at_most_us: f64,
    /// Upper bound of the 99th percentile.
    pub p99_at_most_us: f64,
    /// Upper bound of the 99.9th percentile.
    pub p999_at_most_us: f64,
    /// Upper bound of the maximum.
    pub max_at_most_us: f64,
    /// Number of samples.
    pub count: u64,
}

impl ScheduledToIssue {
    /// Computes the record from LoadGen's latencies and the row of `total` for the same samples.
    /// `shortest_us` is their shortest round trip, `told_us` the mean of the measured calls.
    ///
    /// A percentile's bound is the lowest of three. A sample's delay is at most its latency minus
    /// the shortest round trip. At most one sample in a hundred has 100 times the mean delay. A
    /// percentile is at most any higher percentile.
    pub fn new(
        theirs: &LoadgenLatency,
        total: &StageRow,
        shortest_us: f64,
        told_us: f64,
    ) -> ScheduledToIssue {
        let over = theirs.mean_us - total.mean_us;
        // LoadGen issues no sample early: with a negative mean, the timed calls were too short.
        let told_us = told_us.max(-over);
        let mean = over + told_us;
        let ns = |us: f64| (us * 1000.0).round() / 1000.0;
        // The bound of a percentile also bounds every lower percentile.
        let mut least = f64::INFINITY;
        let mut at_most = |theirs: f64, samples: f64| {
            let beyond = (theirs - shortest_us).max(0.0);
            least = least.min(ns(beyond.min(mean * samples)));
            least
        };
        let max_at_most_us = at_most(theirs.max_us, total.count as f64);
        let p999_at_most_us = at_most(theirs.p999_us, 1000.0);
        let p99_at_most_us = at_most(theirs.p99_us, 100.0);
        let p90_at_most_us = at_most(theirs.p90_us, 10.0);
        ScheduledToIssue {
            mean_us: ns(mean),
            told_us: ns(told_us),
            p50_at_most_us: at_most(theirs.p50_us, 2.0),
            p90_at_most_us,
            p99_at_most_us,
            p999_at_most_us,
            max_at_most_us,
            count: total.count,
        }
    }
}

/// Unit of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitUnit {
    /// Microseconds.
    #[default]
    Us,
    /// Queries.
    Queries,
    /// Samples.
    Samples,
}

/// One condition that LoadGen sets for a valid run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitRecord {
    /// `p99 latency`, `p99 TTFT`, `p99 TPOT`, `duration`, `queries`, `samples`.
    pub name: String,
    /// LoadGen's setting behind the limit: `server_target_latency_ns`.
    pub setting: String,
    /// Unit of `limit` and `was`.
    pub unit: LimitUnit,
    /// Required value.
    pub limit: f64,
    /// Measured value; `None` if LoadGen does not report it.
    pub was: Option<f64>,
    /// True if the limit is a maximum, false if it is a minimum.
    pub at_most: bool,
    /// LoadGen's verdict.
    pub met: bool,
}

/// Returns LoadGen's bound on the latency among its limits, in microseconds; `None` if the scenario
/// has none, or bounds TTFT and TPOT.
pub fn latency_bound_us(limits: &[LimitRecord]) -> Option<f64> {
    let bound = |l: &&LimitRecord| l.at_most && l.setting == "server_target_latency_ns";
    limits.iter().find(bound).map(|l| l.limit)
}

/// LoadGen's early stopping: whether the run had enough queries for its percentile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EarlyStopping {
    /// LoadGen's verdict.
    pub met: bool,
    /// Queries processed.
    pub queries: Option<u64>,
    /// Minimum number of queries required, if all further queries are in time.
    pub needs: Option<u64>,
    /// LoadGen's estimate of the percentile of the latency in SingleStream and MultiStream, in
    /// microseconds.
    pub estimate_us: Option<f64>,
    /// SingleStream, if LoadGen measures tokens: its estimate of the percentile of TTFT. LoadGen
    /// then estimates no percentile of the latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_estimate_us: Option<f64>,
    /// As `ttft_estimate_us`, of TPOT.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpot_estimate_us: Option<f64>,
    /// LoadGen's message on early stopping.
    pub text: String,
}

/// LoadGen's result: of find-peak's final rate, or of a submission run's performance phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadgenRecord {
    /// LoadGen's version.
    pub version: Option<String>,
    /// The scenario: `Server`.
    pub scenario: String,
    /// The mode in force, with `audit.config` applied: `PerformanceOnly`.
    pub mode: String,
    /// The requested mode, if it differs from `mode`.
    pub asked_mode: Option<String>,
    /// LoadGen's verdict; `None` after an accuracy run, which LoadGen does not judge.
    pub valid: Option<bool>,
    /// Queries that LoadGen issued and judged.
    pub queries: Option<u64>,
    /// Of `queries`, those above the latency bound. Server only.
    pub over_limit: Option<u64>,
    /// Server: scheduled samples per second, up to the last sample's scheduled time.
    pub scheduled_per_s: Option<f64>,
    /// Server: samples per second until the last completion. Offline: samples per second.
    /// SingleStream: queries per second.
    pub completed_per_s: Option<f64>,
    /// SingleStream and MultiStream: the percentile of the result, in percent (90.0).
    pub percentile: Option<f64>,
    /// Latency at `percentile`, in microseconds.
    pub percentile_us: Option<f64>,
    /// Tokens per second, if LoadGen measures tokens.
    pub tokens_per_s: Option<f64>,
    /// LoadGen's latencies; `None` after an accuracy run.
    pub latency: Option<LoadgenLatency>,
    /// Times to the first token, if LoadGen measures tokens.
    pub ttft: Option<LoadgenLatency>,
    /// Times per token after the first, if LoadGen measures tokens.
    pub tpot: Option<LoadgenLatency>,
    /// LoadGen's mean latency minus the mean of `total`, in microseconds. LoadGen's latency runs
    /// from the scheduled time to the begin of `QuerySamplesComplete`; `total` runs from the issue
    /// to that call's return. So the mean delay before the issue is at least this difference. A
    /// negative value, as in SingleStream, means that the call takes longer than the delay.
    pub late_mean_us: Option<f64>,
    /// LoadGen's 99th percentile minus the 99th percentile of `total`, in microseconds.
    pub late_p99_us: Option<f64>,
    /// Scheduled time to issue, for the samples that LoadGen judged; `None` after an accuracy run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_to_issue: Option<ScheduledToIssue>,
    /// LoadGen's conditions for a valid run, and the measured values.
    pub limits: Vec<LimitRecord>,
    /// LoadGen's early stopping, if the scenario has it.
    pub early_stopping: Option<EarlyStopping>,
    /// The final rate of find-peak, in queries per second.
    pub peak_qps: Option<f64>,
    /// LoadGen's reasons for an invalid run, in its words.
    pub reasons: Vec<String>,
    /// Errors that LoadGen logged.
    pub errors: u64,
    /// Warnings that LoadGen logged.
    pub warnings: u64,
    /// Texts of the first 20 warnings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warning_messages: Vec<String>,
    /// Settings in force, by LoadGen's names, as it logged them.
    pub effective: BTreeMap<String, String>,
}

impl LoadgenRecord {
    /// Returns an upper bound of the share of samples within the limits on TTFT and TPOT: that of
    /// the lowest percentile that exceeds its limit.
    pub fn most_within_limits(&self) -> f64 {
        let exceeded = self.limits.iter().filter_map(|limit| {
            let row = match limit.setting.as_str() {
                "server_ttft_latency" => self.ttft?,
                "server_tpot_latency" => self.tpot?,
                _ => return None,
            };
            let low = [(row.min_us, 0.0), (row.p50_us, 0.5), (row.p90_us, 0.9)];
            let all = low
                .into_iter()
                .chain([(row.p99_us, 0.99), (row.p999_us, 0.999)]);
            let mut over = all.filter(|(us, _)| *us > limit.limit);
            over.next().map(|(_, share)| share)
        });
        exceeded.fold(1.0, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_loadgen_counts_before_the_issue_adds_up_and_is_bounded() {
        let theirs = LoadgenLatency {
            mean_us: 240.0,
            p50_us: 200.0,
            p90_us: 300.0,
            p99_us: 5_000.0,
            p999_us: 90_000.0,
            max_us: 100_000.0,
            ..LoadgenLatency::default()
        };
        let total = StageRow {
            mean_us: 203.0,
            count: 4_000,
            ..StageRow::default()
        };
        let s = ScheduledToIssue::new(&theirs, &total, 120.0, 3.0);
        assert_eq!((s.mean_us, s.told_us, s.count), (40.0, 3.0, 4_000));
        // Bounded by latency minus shortest round trip, or by the mean if that is lower.
        assert_eq!((s.p50_at_most_us, s.p90_at_most_us), (80.0, 180.0));
        assert_eq!((s.p99_at_most_us, s.p999_at_most_us), (4_000.0, 40_000.0));
        assert_eq!(s.max_at_most_us, 99_880.0);
        // The timed calls were too short: LoadGen issues no sample early.
        let early = LoadgenLatency {
            mean_us: 198.0,
            ..theirs
        };
        let s = ScheduledToIssue::new(&early, &total, 120.0, 3.0);
        assert_eq!((s.mean_us, s.told_us, s.p99_at_most_us), (0.0, 5.0, 0.0));
        // With few samples, the lowest bound of the higher percentiles bounds the maximum.
        let few = StageRow {
            count: 307,
            ..total
        };
        let s = ScheduledToIssue::new(&theirs, &few, 120.0, 3.0);
        assert_eq!((s.p999_at_most_us, s.max_at_most_us), (12_280.0, 12_280.0));
        assert_eq!(s.p99_at_most_us, 4_000.0);
    }
}
