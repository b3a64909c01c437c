//! The other kinds of pages: of a language model, of a Pareto front, of a tuning session.

mod common;

use common::{RunShape, charts, run, well_formed, without_scripts};
use qdl::testkit::assert_has;
use record::{Goodput, RunFolder, StageRow, TokenRecord, TokenTime};
use report::{html, pareto, read_all, tuning};
use tune::{
    Halt, RateKind, Session, SessionPlan, TrialLimit, TrialRecord, TrialRunner, TrialSetting,
};

/// A run of a language model.
fn of_tokens(name: &'static str, per_s: f64, p99_us: f64) -> RunFolder {
    let mut run = run(&RunShape {
        name,
        ticks: 10,
        ..RunShape::default()
    });
    let times = [(TokenTime::Ttft, p99_us), (TokenTime::Tpot, p99_us / 50.0)];
    let row = |p99_us| StageRow {
        p99_us,
        ..StageRow::default()
    };
    run.summary.run.tokens = Some(TokenRecord {
        per_s,
        times: times.map(|(time, us)| (time, row(us))).into(),
        ..TokenRecord::default()
    });
    run.summary.run.goodput = Some(Goodput {
        share: 0.875,
        per_s: 1_050.0,
        ..Goodput::default()
    });
    run
}

#[test]
fn a_language_models_figures_come_first() {
    let mut run = of_tokens("llm", 5_000.0, 80_000.0);
    run.summary.run.system.ledger.refused = [3, 1, 0];
    for tick in &mut run.timeline.as_mut().expect("a timeline").ticks {
        tick.tokens = 500;
    }
    let page = html(&[run]);
    let names = page.split("<li><small>").skip(1);
    let names: Vec<&str> = names
        .map(|rest| rest.split('<').next().unwrap_or(""))
        .collect();
    let first = [
        "p99 TTFT",
        "p99 TPOT",
        "tokens per second",
        "failed requests",
        "goodput: 88 % of samples",
        "samples per second",
    ];
    assert_eq!(names[..6], first);
    assert_has(
        &page,
        &[
            "80.0 ms",
            "<strong>5,000</strong>",
            "4 refused, 37 repeated",
            "1,050/s",
        ],
    );
    let charts = charts(&page);
    let course = charts
        .iter()
        .find(|c| c["marks"].as_array().is_some_and(|m| !m.is_empty()));
    let line = &course.expect("a chart over time")["lines"][0];
    assert_eq!(line["name"], "tokens of completed answers");
    assert_eq!(line["values"][0], 5_000.0);
}

#[test]
fn five_runs_are_points_and_the_front_joins_those_that_no_other_beats() {
    let runs = [
        of_tokens("slow", 100.0, 10_000.0),
        of_tokens("fair", 200.0, 20_000.0),
        of_tokens("late", 200.0, 25_000.0),
        of_tokens("poor", 150.0, 30_000.0),
        of_tokens("fast <5>", 300.0, 90_000.0),
    ];
    let page = pareto(&runs).expect("a page");
    well_formed(&without_scripts(&page)).expect("well formed");
    let all = charts(&page);
    assert_eq!(all.len(), 3, "TTFT, TPOT, latency");
    let ttft = &all[0];
    assert_eq!(
        ttft["x"],
        serde_json::json!([100.0, 150.0, 200.0, 200.0, 300.0])
    );
    let [front, hollow] = [&ttft["lines"][0], &ttft["lines"][1]];
    assert_eq!(
        (&front["shape"], &hollow["shape"]),
        (&"joined".into(), &"hollow".into())
    );
    let us = |us: [Option<f64>; 5]| serde_json::json!(us);
    let on = [Some(1e4), None, Some(2e4), None, Some(9e4)];
    assert_eq!(front["values"], us(on));
    let beaten = [None, Some(3e4), None, Some(2.5e4), None];
    assert_eq!(hollow["values"], us(beaten));
    let names = ttft["marks"].as_array().expect("names").iter();
    let names: Vec<_> = names.map(|m| m["text"].as_str().unwrap_or("")).collect();
    assert_eq!(names, ["A", "D", "B", "C", "E"]);
    assert_has(&page, &["<td>E fast &lt;5&gt;</td>", "<td>TTFT, TPOT"]);
    // The page holds its runs.
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().join("pareto.html");
    std::fs::write(&path, &page).expect("written");
    assert_eq!(read_all(&path).expect("runs").len(), 5);
    let error = pareto(&runs[..1]).expect_err("one run");
    assert_has(&error, &["two or more"]);
    let mut other = runs[1].clone();
    other.summary.run.scenario = "Offline".to_owned();
    let error = pareto(&[runs[0].clone(), other]).expect_err("two scenarios");
    assert_has(&error, &["`fair` is Offline of a", "`slow` is Server of a"]);
}

/// VALID up to 1,000 per second.
struct Upto1000;

impl TrialRunner for Upto1000 {
    fn run(&mut self, setting: &TrialSetting, _: &str) -> Result<TrialRecord, Halt> {
        let limit = TrialLimit {
            name: "p99 latency".to_owned(),
            was: setting.rate / 1_000.0,
            bound: 1.0,
        };
        Ok(TrialRecord {
            valid: limit.part() <= 1.0,
            limits: vec![limit],
            cost_s: 1.0,
            limited_by: "the engine computes <all> the time".to_owned(),
            ..TrialRecord::default()
        })
    }
}

#[test]
fn a_tuning_session_has_a_page_like_a_runs() {
    let mut session = Session::new(SessionPlan {
        kind: RateKind::Server,
        first: 300.0,
        least: 1.0,
        most: 1e6,
        near: 1.03,
        seconds: 1.0,
        samples: 1,
        full_seconds: Some(1.0),
        budget_s: 600.0,
        ..SessionPlan::default()
    });
    session.go(&mut Upto1000);
    let rate = session.found().expect("a rate");
    let diff = [format!("+ loadgen.settings.server_target_qps: {rate}")];
    let page = tuning(&session, "f<1>.yaml", &diff, "a note on `engine.max_batch`");
    let shown = without_scripts(&page);
    well_formed(&shown).expect("well formed");
    assert_has(
        &shown,
        &[
            "Tuning of f&lt;1&gt;.yaml",
            "CERTIFIED",
            "the full run is VALID",
        ],
    );
    assert_has(
        &shown,
        &[&format!("<code>{}</code>", diff[0]), "computes &lt;all&gt;"],
    );
    assert_has(
        &shown,
        &[
            "<td>certified</td>",
            "<td>refuted</td>",
            "<code>engine.max_batch</code>",
        ],
    );
    let charts = charts(&page);
    // Every trial but the full run, once in each chart.
    for chart in &charts {
        assert_eq!(
            chart["x"].as_array().expect("x").len(),
            session.finished.len() - 1
        );
    }
    let [rates, parts] = &charts[..] else {
        panic!("two charts: {}", charts.len());
    };
    assert_eq!(rates["lines"][0]["shape"], "filled");
    assert_eq!(parts["lines"][2]["values"][0], 1.0);
    let unfinished = tuning(&Session::new(SessionPlan::default()), "f.yaml", &[], "");
    well_formed(&without_scripts(&unfinished)).expect("well formed");
    assert_has(&unfinished, &["NOT CERTIFIED"]);
}
