//! Assembles the state of a running run for the live page.

use loadgen_bridge::{Scenario, TestMode, TestSettings};
use qdl::counters::Live;
use record::{
    LimitRecord, LimitUnit,
    timeline::{ConnectionTick, Timeline},
};
use report::{SoFar, State};

use crate::outcome::result::{at_least, at_most, mode, percent};

/// Maximum length of an event's text, in characters.
const MOST_WORDS: usize = 240;
/// Maximum number of shown connections.
const MOST: usize = 64;
/// Constant data of a run.
#[derive(Debug)]
pub struct LiveRun {
    test: TestSettings,
    target_qps: Option<f64>,
    /// The state before the run begins. The fabric is known once the backend exists.
    pub first: SoFar,
}

pub struct RunMoment<'a> {
    /// Time of the first query, and now, on [`fabric::clock`].
    pub at: [u64; 2],
    /// Number of issued and of completed samples.
    pub counts: [u64; 2],
    /// Samples and tokens per second.
    pub rates: [f64; 2],
    /// Names and readings of the connections.
    pub connections: (&'a [String], Vec<ConnectionTick>),
    pub timeline: Timeline,
}

impl LiveRun {
    pub fn new(node: &str, test: &TestSettings, target_qps: Option<f64>) -> Self {
        LiveRun {
            first: SoFar {
                node: node.to_owned(),
                title: report::title(test.scenario.name(), mode(test.mode)),
                target_qps,
                ..SoFar::default()
            },
            test: test.clone(),
            target_qps: target_qps.filter(|_| test.mode == TestMode::PerformanceOnly),
        }
    }

    /// Returns the full state at a moment.
    pub fn so_far(&self, moment: RunMoment<'_>, live: &Live) -> SoFar {
        let [first_ns, now_ns] = moment.at;
        let figures = live.figures();
        let (names, readings) = moment.connections;
        let named = names.iter().cloned().zip(readings).take(MOST);
        let mut timeline = moment.timeline;
        for event in &mut timeline.events {
            if let Some((at, _)) = event.text.char_indices().nth(MOST_WORDS) {
                event.text.truncate(at);
            }
        }
        let [rate, token_rate] = moment.rates;
        let tokens = figures.tokens > 0;
        let mut so_far = SoFar {
            state: State::Running,
            elapsed_s: now_ns.saturating_sub(first_ns) as f64 / 1e9,
            issued: moment.counts[0],
            completed: moment.counts[1],
            rate,
            token_rate: tokens.then_some(token_rate),
            ttft_us: (figures.p99_ttft_ns > 0).then_some(figures.p99_ttft_ns as f64 / 1000.0),
            timeline,
            connections: named.collect(),
            target_qps: self.target_qps,
            ..self.first.clone()
        };
        so_far.limits = self.limits(&so_far);
        so_far
    }

    /// LoadGen's limits for a valid run, with the current values.
    fn limits(&self, of: &SoFar) -> Vec<LimitRecord> {
        let test = &self.test;
        if test.mode != TestMode::PerformanceOnly {
            return Vec::new();
        }
        let mut limits = Vec::new();
        if test.scenario == Scenario::Server {
            limits.extend(self.bounds(of));
        }
        let limit =
            |name, unit, limit: f64, was: f64| at_least(name, unit, limit, Some(was), was >= limit);
        if test.min_duration_ms > 0 {
            let (least, was) = (test.min_duration_ms as f64 * 1000.0, of.elapsed_s * 1e6);
            let name = ("duration", "min_duration_ms");
            limits.push(limit(name, LimitUnit::Us, least, was));
        }
        let (name, unit, each) = match test.scenario {
            Scenario::Offline => ("samples", LimitUnit::Samples, 1),
            Scenario::MultiStream => (
                "queries",
                LimitUnit::Queries,
                test.multi_stream_samples_per_query.max(1),
            ),
            Scenario::Server | Scenario::SingleStream => ("queries", LimitUnit::Queries, 1),
        };
        if test.min_query_count > 0 {
            let was = (of.completed / each) as f64;
            let least = test.min_query_count as f64;
            limits.push(limit((name, "min_query_count"), unit, least, was));
        }
        limits
    }

    /// Server's bound on latency, or on TTFT and TPOT. Of these, only the 99th percentile of TTFT
    /// is measured during the run.
    fn bounds(&self, of: &SoFar) -> Vec<LimitRecord> {
        let test = &self.test;
        let percent = percent(test.server_target_latency_percentile);
        let bound = |what, setting, limit_ns: u64, was: Option<f64>| {
            let limit = at_most(percent, what, setting, limit_ns as f64);
            LimitRecord {
                was,
                met: was.is_none_or(|was| was <= limit.limit),
                ..limit
            }
        };
        if test.use_token_latencies {
            let ttft_us = of.ttft_us.filter(|_| percent == 99.0);
            let (ttft, tpot) = (test.server_ttft_latency, test.server_tpot_latency);
            return vec![
                bound("TTFT", "server_ttft_latency", ttft, ttft_us),
                bound("TPOT", "server_tpot_latency", tpot, None),
            ];
        }
        let [was] = of.quantiles_us([test.server_target_latency_percentile]);
        let latency = test.server_target_latency_ns;
        vec![bound("latency", "server_target_latency_ns", latency, was)]
    }
}

#[cfg(test)]
mod tests {
    use record::timeline::{Event, Tick, latency_bucket};

    use super::*;

    fn server() -> TestSettings {
        let mut test = TestSettings {
            scenario: Scenario::Server,
            ..TestSettings::default()
        };
        test.server_target_latency_ns = 10_000_000;
        test.min_duration_ms = 4_000;
        test.min_query_count = 1_000;
        test
    }

    fn moment(latency_ns: u64) -> RunMoment<'static> {
        let tick = Tick {
            latency: vec![(latency_bucket(latency_ns), 1_000)],
            ..Tick::default()
        };
        RunMoment {
            at: [5_000_000_000, 7_000_000_000],
            counts: [2_010, 2_000],
            rates: [0.0; 2],
            connections: (&[], Vec::new()),
            timeline: Timeline {
                tick_ms: 100,
                ticks: vec![tick],
                events: vec![Event {
                    text: "ä".repeat(100_000),
                    ..Event::default()
                }],
                ..Timeline::default()
            },
        }
    }

    #[test]
    fn limits_are_those_of_loadgen_so_far() {
        let known = LiveRun::new("fe", &server(), Some(1_000.0));
        let so_far = known.so_far(moment(2_000_000), &Live::new(2));
        let limits = so_far.limits.iter();
        let met: Vec<_> = limits.map(|l| (l.name.as_str(), l.met)).collect();
        let all = [
            ("p99 latency", true),
            ("duration", false),
            ("queries", true),
        ];
        assert_eq!(met, all);
        assert_eq!(so_far.verdict().0, Some(true));
        assert_eq!((so_far.in_flight(), so_far.mean_rate()), (10, 1_000.0));
        let late = known.so_far(moment(20_000_000), &Live::new(2));
        assert_eq!(late.verdict().0, Some(false));
        assert!(late.verdict().2.contains("p99 latency"));
        assert_eq!(known.first.verdict().1, "NOT BEGUN");
    }

    /// Only the 99th percentile of TTFT is measured during a run.
    #[test]
    fn a_bound_has_a_value_only_of_its_own_percentile() {
        let mut test = server();
        test.use_token_latencies = true;
        for (percentile, was) in [(0.99, Some(7.0)), (0.9, None)] {
            test.server_target_latency_percentile = percentile;
            let so_far = SoFar {
                ttft_us: Some(7.0),
                ..SoFar::default()
            };
            let bounds = LiveRun::new("fe", &test, None).bounds(&so_far);
            let p = percent(percentile);
            let names: Vec<_> = bounds.iter().map(|l| l.name.as_str()).collect();
            assert_eq!(names, [format!("p{p} TTFT"), format!("p{p} TPOT")]);
            assert_eq!((bounds[0].was, bounds[1].was), (was, None));
        }
    }

    #[test]
    fn long_words_are_cut() {
        let known = LiveRun::new("fe", &server(), None);
        let so_far = known.so_far(moment(1), &Live::new(1));
        assert_eq!(so_far.timeline.events[0].text.chars().count(), MOST_WORDS);
    }
}
