//! The tables of the simulator.

use std::fmt::Write;

use qdl::rails::{Policy, RailPolicy, RailsError, Score};
use serde::Serialize;

use super::{Outcome, Scenario, SimPolicy, run};

/// One run and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What was run.
    pub scenario: Scenario,
    /// What came of it.
    pub outcome: Outcome,
}

/// Rows under a heading.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What the rows have in common.
    pub title: String,
    /// The rows.
    pub rows: Vec<Row>,
}

fn spray(above_only: bool) -> SimPolicy {
    SimPolicy::Rails(RailPolicy::HealthSpray {
        delta: Score::from_ratio(1, 4),
        above_only,
    })
}

/// K rails, 5 % of them congested to a tenth of their rate: every policy, and for each the
/// yardstick, the same policy with the congested rails left out.
///
/// # Errors
/// [`RailsError`] where there are no rails or too many.
pub fn congestion_table(rails: usize, shorten: u64) -> Result<Report, RailsError> {
    let mut rows = Vec::new();
    for policy in [
        SimPolicy::Plain(Policy::RoundRobin),
        SimPolicy::Plain(Policy::LeastOutstanding),
        SimPolicy::Rails(RailPolicy::Best),
        SimPolicy::Rails(RailPolicy::HealthBestFit),
        spray(false),
        spray(true),
    ] {
        for without_congested in [false, true] {
            let mut s = Scenario::new(rails, policy).with_congestion();
            // The same samples arrive either way: the rails that are left carry more.
            s.without_congested = without_congested;
            s.duration_us /= shorten.max(1);
            s.congested_us /= shorten.max(1);
            rows.push(Row {
                outcome: run(&s)?,
                scenario: s,
            });
        }
    }
    let congested = rows.first().map_or(0, |r| r.scenario.congested);
    Ok(Report {
        title: format!("{rails} rails, {congested} congested to a tenth of their rate, 60 % load"),
        rows,
    })
}

/// K healthy rails with 1 to 64 flows to a rail: what entropy is worth.
///
/// # Errors
/// [`RailsError`] where there are no rails or too many.
pub fn entropy_table(rails: usize, shorten: u64) -> Result<Report, RailsError> {
    let mut rows = Vec::new();
    for policy in [SimPolicy::Plain(Policy::RoundRobin), spray(false)] {
        for flows in [1, 2, 4, 16, 64] {
            let mut s = Scenario::new(rails, policy);
            s.flows = flows;
            s.duration_us /= shorten.max(1);
            rows.push(Row {
                outcome: run(&s)?,
                scenario: s,
            });
        }
    }
    Ok(Report {
        title: format!("{rails} healthy rails, flows hashed onto 4 links to a rail, 60 % load"),
        rows,
    })
}

impl Report {
    /// As a table of text.
    pub fn render(&self) -> String {
        let mut t = format!("{}\n", self.title);
        let _ = writeln!(
            t,
            "  {:<26} {:>5} {:>9} {:>9} {:>9} {:>8} {:>8} {:>9} {:>8} {:>7}",
            "policy",
            "flows",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "healthy",
            "highest",
            "congested",
            "crossing",
            "changes"
        );
        for r in &self.rows {
            let (s, o) = (&r.scenario, &r.outcome);
            let name = if s.without_congested {
                "  without congested rails"
            } else {
                s.policy.name()
            };
            let _ = writeln!(
                t,
                "  {:<26} {:>5} {:>9.0} {:>9.0} {:>9.0} {:>7.1}% {:>7.1}% {:>8.2}% {:>7.1}% {:>7}",
                name,
                s.flows,
                o.p50_us,
                o.p99_us,
                o.p999_us,
                100.0 * o.healthy_utilisation,
                100.0 * o.highest_utilisation,
                100.0 * o.congested_share,
                100.0 * o.crossed_share,
                o.changes
            );
        }
        t
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tenth of a second of eight rails tells the policies apart.
    #[test]
    fn health_keeps_clear_of_congestion() {
        let report = congestion_table(8, 8).expect("eight rails");
        let find = |name: &str, without: bool| {
            let named = |r: &&Row| {
                r.scenario.policy.name() == name && r.scenario.without_congested == without
            };
            &report
                .rows
                .iter()
                .find(named)
                .expect("in the table")
                .outcome
        };
        let blind = find("round_robin", false);
        for name in ["best", "health_best_fit", "health_spray"] {
            let (with, without) = (find(name, false), find(name, true));
            assert!(with.congested_share < 0.01, "{name}: {with:?}");
            assert!(
                with.p99_us <= 1.5 * without.p99_us,
                "{name}: {with:?} {without:?}"
            );
            assert!(
                5.0 * with.p99_us <= blind.p99_us,
                "{name}: {with:?} {blind:?}"
            );
        }
        assert!(report.render().contains("health_best_fit"));
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let mut s = Scenario::new(8, spray(false)).with_congestion();
        s.duration_us = 100_000;
        s.congested_us = 30_000;
        let first = run(&s).expect("eight rails");
        assert_eq!(run(&s).expect("eight rails"), first);
        s.seed += 1;
        assert_ne!(run(&s).expect("eight rails"), first);
    }

    #[test]
    fn every_sample_comes_back() {
        let mut s = Scenario::new(4, SimPolicy::Plain(Policy::RoundRobin)).with_congestion();
        s.duration_us = 200_000;
        let o = run(&s).expect("four rails");
        let expected = 0.6 * 4.0 * 100_000.0 / 120.4;
        assert!((o.samples as f64 / expected - 1.0).abs() < 0.1, "{o:?}");
    }

    #[test]
    fn more_flows_collide_less() {
        let report = entropy_table(8, 40).expect("eight rails");
        let p99 = |flows: usize| {
            report
                .rows
                .iter()
                .find(|r| r.scenario.flows == flows)
                .expect("in the table")
                .outcome
                .p99_us
        };
        assert!(p99(1) > 1.5 * p99(64), "{} {}", p99(1), p99(64));
    }
}
