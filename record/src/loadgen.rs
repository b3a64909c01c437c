//! What LoadGen said about a run, beside what we measured ourselves.
//!
//! Plain data: whoever wants to know what limited a run reads the margins of [`LimitRecord`], the
//! two rates and [`LoadgenRecord::late_mean_us`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::StageRow;

/// Latencies as LoadGen computed them, in microseconds: from the time for which a sample was
/// scheduled to its completion; in MultiStream those of queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadgenLatency {
    /// The shortest.
    pub min_us: f64,
    /// The mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// What of LoadGen's time of a sample lies before `issue_query`: the stage before our first.
/// LoadGen
/// does not say when each was scheduled, but means add up, so this one is known; percentiles do
/// not, so of those there is the most that they can be.
///
/// `mean_us` and the means of those up to completion make LoadGen's mean latency and `told_us`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScheduledToIssue {
    /// The mean in microseconds: LoadGen's mean latency of samples, less our mean of `total`, and
    /// `told_us`.
    pub mean_us: f64,
    /// What `QuerySamplesComplete` took on average, in microseconds, of one call in some: it is in
    /// our `completion` and `total`, and not in LoadGen's latency, which ends as that call begins.
    pub told_us: f64,
    /// The median is no more than this.
    pub p50_at_most_us: f64,
    /// The 90th percentile is no more than this.
    pub p90_at_most_us: f64,
    /// The 99th percentile is no more than this.
    pub p99_at_most_us: f64,
    /// The 99.9th percentile is no more than this.
    pub p999_at_most_us: f64,
    /// The longest is no more than this.
    pub max_at_most_us: f64,
    /// Samples.
    pub count: u64,
}

impl ScheduledToIssue {
    /// From LoadGen's latencies of samples, our row of `total` for the same samples, the shortest
    /// round trip of any of them and the mean call, both in microseconds.
    ///
    /// Three bounds hold for a percentile, and the lowest is taken. A sample is late by no more
    /// than its latency less the shortest way; where the mean is m, no more than one in a
    /// hundred takes 100 m; and a percentile is no more than a higher one.
    pub fn new(
        theirs: &LoadgenLatency,
        total: &StageRow,
        shortest_us: f64,
        told_us: f64,
    ) -> ScheduledToIssue {
        let over = theirs.mean_us - total.mean_us;
        // Nothing is issued before its time: a call that was measured in part took what is missing.
        let told_us = told_us.max(-over);
        let mean = over + told_us;
        let ns = |us: f64| (us * 1000.0).round() / 1000.0;
        // What bounds a percentile bounds those below it: the lowest so far.
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

/// What a limit is counted in.
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

/// One thing that LoadGen asks of a valid run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitRecord {
    /// `p99 latency`, `p99 TTFT`, `p99 TPOT`, `duration`, `queries`, `samples`.
    pub name: String,
    /// LoadGen's setting that it comes from: `server_target_latency_ns`.
    pub setting: String,
    /// Of `limit` and `was`.
    pub unit: LimitUnit,
    /// What was asked for.
    pub limit: f64,
    /// What it came to; `None` where LoadGen does not say.
    pub was: Option<f64>,
    /// The limit is the most that is allowed, and not the least.
    pub at_most: bool,
    /// LoadGen's word.
    pub met: bool,
}

impl LimitRecord {
    /// The part of the limit that was left over: 0.25 is a quarter below the most allowed, or a
    /// quarter above the least; below 0 it was not met.
    pub fn margin(&self) -> Option<f64> {
        let was = self.was?;
        if self.limit <= 0.0 {
            return None;
        }
        let over = (was - self.limit) / self.limit;
        Some(if self.at_most { -over } else { over })
    }
}

/// LoadGen's early stopping: whether the run was long enough to be sure of its percentile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EarlyStopping {
    /// LoadGen's word.
    pub met: bool,
    /// Queries that there were.
    pub queries: Option<u64>,
    /// Queries that it would need at least, all further ones in time.
    pub needs: Option<u64>,
    /// Its estimate of the percentile in SingleStream and MultiStream, in microseconds.
    pub estimate_us: Option<f64>,
    /// LoadGen's own words.
    pub text: String,
}

/// LoadGen's result. After find-peak that of the rate it ended with, after a submission run that
/// of its performance phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadgenRecord {
    /// LoadGen's version.
    pub version: Option<String>,
    /// The scenario it ran: `Server`.
    pub scenario: String,
    /// The mode it ran, `audit.config` included: `PerformanceOnly`.
    pub mode: String,
    /// The mode it was asked for, where that was another.
    pub asked_mode: Option<String>,
    /// Its word; `None` after an accuracy run, which is not judged.
    pub valid: Option<bool>,
    /// Queries that it issued and judged.
    pub queries: Option<u64>,
    /// Of those, the ones beyond the bound on latency. Server alone has it.
    pub over_limit: Option<u64>,
    /// Server: samples per second as they were scheduled, to the last one's time.
    pub scheduled_per_s: Option<f64>,
    /// Server: samples per second until the last one was completed. Offline: samples per second.
    /// SingleStream: queries per second.
    pub completed_per_s: Option<f64>,
    /// SingleStream and MultiStream: the percentile that is the result, in percent (90.0).
    pub percentile: Option<f64>,
    /// Its latency, in microseconds.
    pub percentile_us: Option<f64>,
    /// Tokens per second, where it measures them.
    pub tokens_per_s: Option<f64>,
    /// Its latencies; `None` after an accuracy run.
    pub latency: Option<LoadgenLatency>,
    /// Times to the first token, where it measures them.
    pub ttft: Option<LoadgenLatency>,
    /// Times per token after the first, likewise.
    pub tpot: Option<LoadgenLatency>,
    /// Its mean latency less our mean of `total`, in microseconds. Its time of a sample begins when
    /// it was scheduled and ends as `QuerySamplesComplete` begins; `total` begins at the issue and
    /// ends as that call returns. So samples were issued that much later than scheduled, or more.
    /// Below 0, as SingleStream has it, the call took so much longer than they were late.
    pub late_mean_us: Option<f64>,
    /// Its 99th percentile less our 99th percentile of `total`, in microseconds.
    pub late_p99_us: Option<f64>,
    /// The stage before our first, of the samples that it judged; `None` after an accuracy run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_to_issue: Option<ScheduledToIssue>,
    /// What it asks of a valid run, and what that came to.
    pub limits: Vec<LimitRecord>,
    /// Its early stopping, where the scenario has it.
    pub early_stopping: Option<EarlyStopping>,
    /// The rate that find-peak ended with, in queries per second.
    pub peak_qps: Option<f64>,
    /// Why a run is not valid, in LoadGen's own words.
    pub reasons: Vec<String>,
    /// Errors that it logged.
    pub errors: u64,
    /// Warnings that it logged.
    pub warnings: u64,
    /// What the first 20 of them say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warning_messages: Vec<String>,
    /// Settings that it ran with, under its own names, as it logged them.
    pub effective: BTreeMap<String, String>,
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
        // By the latency less the shortest way, and by the mean where that is less.
        assert_eq!((s.p50_at_most_us, s.p90_at_most_us), (80.0, 180.0));
        assert_eq!((s.p99_at_most_us, s.p999_at_most_us), (4_000.0, 40_000.0));
        assert_eq!(s.max_at_most_us, 99_880.0);
        // A call that was timed too short: nothing is issued before its time.
        let early = LoadgenLatency {
            mean_us: 198.0,
            ..theirs
        };
        let s = ScheduledToIssue::new(&early, &total, 120.0, 3.0);
        assert_eq!((s.mean_us, s.told_us, s.p99_at_most_us), (0.0, 5.0, 0.0));
        // Of few samples the bound on the longest is the lowest of those behind it.
        let few = StageRow {
            count: 307,
            ..total
        };
        let s = ScheduledToIssue::new(&theirs, &few, 120.0, 3.0);
        assert_eq!((s.p999_at_most_us, s.max_at_most_us), (12_280.0, 12_280.0));
        assert_eq!(s.p99_at_most_us, 4_000.0);
    }

    #[test]
    fn a_margin_is_what_is_left_of_a_limit() {
        let limit = |limit, was, at_most| LimitRecord {
            limit,
            was,
            at_most,
            ..LimitRecord::default()
        };
        assert_eq!(limit(10.0, Some(7.5), true).margin(), Some(0.25));
        assert_eq!(limit(10.0, Some(20.0), true).margin(), Some(-1.0));
        assert_eq!(limit(10.0, Some(12.5), false).margin(), Some(0.25));
        assert_eq!(limit(10.0, Some(5.0), false).margin(), Some(-0.5));
        assert_eq!(limit(10.0, None, false).margin(), None);
        assert_eq!(limit(0.0, Some(5.0), false).margin(), None);
    }
}
