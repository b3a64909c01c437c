//! The other kinds of pages: of a language model, of a Pareto front, of a tuning session.

use crate::common::{RunShape, charts, run, well_formed, without_scripts};
use qdl::testkit::assert_has;
use record::{Goodput, LoadgenLatency, RunFolder, TokenRecord, TokenTime};
use report::{html, pareto, read_all, tuning};
use serde_json::json;
use tune::{Halt, Session, SessionPlan, TrialLimit, TrialRecord, TrialRunner, TrialSetting};

fn of_tokens(name: &'static str, per_s: f64, p99_us: f64) -> RunFolder {
    let mut run = run(&RunShape {
        name,
        ticks: 10,
        ..RunShape::default()
    });
    let mut tokens = TokenRecord {
        per_s,
        ..TokenRecord::default()
    };
    for (time, p99_us) in [(TokenTime::Ttft, p99_us), (TokenTime::Tpot, p99_us / 50.0)] {
        tokens.times.entry(time).or_default().p99_us = p99_us;
    }
    run.summary.run.tokens = Some(tokens);
    let theirs = |p99_us| {
        Some(LoadgenLatency {
            p99_us,
            ..LoadgenLatency::default()
        })
    };
    let loadgen = run.summary.run.loadgen.get_or_insert_default();
    (loadgen.ttft, loadgen.tpot) = (theirs(p99_us), theirs(p99_us / 50.0));
    run
}

#[test]
fn a_language_models_figures_come_first() {
    let mut run = of_tokens("llm", 5_000.0, 80_000.0);
    let mut good = Goodput::default();
    (good.share, good.per_s) = (0.875, 1_050.0);
    run.summary.run.goodput = Some(good);
    run.summary.run.system.ledger.refused = [3, 1, 0];
    run.timeline.as_mut().expect("a timeline").ticks[0].tokens = 500;
    let page = html(&[run]);
    let tiles = page.split("<li><small>").skip(1);
    let tiles = tiles.map(|rest| rest.split("</strong>").next().unwrap_or(""));
    let first: Vec<String> = tiles.map(|t| t.replace("</small><strong>", ": ")).collect();
    let wanted = [
        "p99 TTFT, LoadGen's: 80.0 ms",
        "p99 TPOT, LoadGen's: 1.60 ms",
        "tokens per second: 5,000",
        "failed requests: 4 refused, 37 repeated",
        "samples per second: 1,200",
    ];
    assert_eq!(first[..5], wanted);
    assert!(
        first.iter().any(|t| t.starts_with("goodput: 87.5 %")),
        "{first:?}"
    );
    let mut lines = charts(&page).into_iter().map(|c| c["lines"][0].clone());
    let tokens = lines.find(|l| l["name"] == "tokens of completed answers");
    assert_eq!(tokens.expect("tokens")["values"][0], 5_000.0);
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
    let charts = charts(&page);
    assert_eq!(charts.len(), 3, "TTFT, TPOT, latency");
    let (ttft, lines) = (&charts[0], &charts[0]["lines"]);
    assert_eq!(ttft["x"], json!([100.0, 150.0, 200.0, 200.0, 300.0]));
    let shapes = [&lines[0]["shape"], &lines[1]["shape"]];
    assert_eq!(shapes, [&json!("joined"), &json!("hollow")]);
    assert_eq!(lines[0]["values"], json!([1e4, null, 2e4, null, 9e4]));
    assert_eq!(lines[1]["values"], json!([null, 3e4, null, 2.5e4, null]));
    let names = ttft["marks"].as_array().expect("names").iter();
    let names: Vec<_> = names.map(|m| m["text"].as_str().unwrap_or("")).collect();
    assert_eq!(names, ["1", "4", "2", "3", "5"]);
    assert_has(&page, &["<td>5 fast &lt;5&gt;</td>", "<td>TTFT, TPOT"]);
    // The page holds its runs.
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().join("pareto.html");
    std::fs::write(&path, &page).expect("written");
    assert_eq!(read_all(&path).expect("runs").len(), 5);
    assert_has(&pareto(&runs[..1]).expect_err("one run"), &["two or more"]);
    let mut other = runs[1].clone();
    other.summary.run.scenario = "Offline".to_owned();
    let error = pareto(&[runs[0].clone(), other]).expect_err("two scenarios");
    assert_has(&error, &["`fair` is Offline of a", "`slow` is Server of a"]);
}

/// VALID up to 1,000 per second.
struct Upto1000;

impl TrialRunner for Upto1000 {
    fn run(&mut self, setting: &TrialSetting, _: &str) -> Result<TrialRecord, Halt> {
        let mut limit = TrialLimit::default();
        (limit.was, limit.bound) = (setting.rate, 1_000.0);
        let mut record = TrialRecord::default();
        (record.valid, record.limits) = (limit.part() <= 1.0, vec![limit]);
        record.limited_by = "the engine computes <all> the time".to_owned();
        Ok(record)
    }
}

#[test]
fn a_tuning_session_has_a_page_like_a_runs() {
    let mut plan = SessionPlan::default();
    (plan.first, plan.least, plan.most, plan.near) = (300.0, 1.0, 1e6, 1.03);
    (plan.full_seconds, plan.budget_s) = (Some(1.0), 600.0);
    let mut session = Session::new(plan);
    session.go(&mut Upto1000);
    let rate = session.found().expect("a rate");
    let diff = [format!("+ loadgen.settings.server_target_qps: {rate}")];
    let page = tuning(&session, "f<1>.yaml", &diff, "a note on `engine.max_batch`");
    let shown = without_scripts(&page);
    well_formed(&shown).expect("well formed");
    let change = format!("<code>{}</code>", diff[0]);
    let head = ["Tuning of f&lt;1&gt;.yaml", "CERTIFIED", &change];
    assert_has(&shown, &head);
    let why = ["the full run is VALID", "computes &lt;all&gt;"];
    assert_has(&shown, &why);
    let rates = ["<td>certified</td>", "<td>refuted</td>"];
    assert_has(&shown, &rates);
    assert_has(&shown, &["<code>engine.max_batch</code>"]);
    // Each trial but the full run is a point of either chart.
    let (charts, trials) = (charts(&page), session.finished.len() - 1);
    let points = charts.iter().map(|c| c["x"].as_array().map_or(0, Vec::len));
    assert_eq!(points.collect::<Vec<_>>(), [trials, trials]);
    assert_eq!(charts[1]["lines"][2]["values"][0], 1.0, "the bound");
    let unfinished = tuning(&Session::new(SessionPlan::default()), "f.yaml", &[], "");
    well_formed(&without_scripts(&unfinished)).expect("well formed");
    assert_has(&unfinished, &["NOT CERTIFIED"]);
}
