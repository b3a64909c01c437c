//! Tests of LoadGen's result, derived from its logs.

use qdl::counters::{Histograms, SampleTimes};
use record::Stage;

use qdl::testkit::assert_has;

use super::*;
use crate::{
    outcome::reasons::{self, JudgedRun},
    settings::provenance::{MLPERF_CONF, Provenance},
};

fn reasons_of(outcome: &TestOutcome, record: &LoadgenRecord, given: &Provenance) -> Vec<String> {
    reasons::reasons(&JudgedRun {
        standstill: None,
        outcome,
        record,
        given,
        seconds: 0.332,
    })
}

fn detail(lines: &[(&str, &str)]) -> Detail {
    let line = |(key, value): &(&str, &str)| {
        let error = key.starts_with("error_");
        format!(
            ":::MLLOG {{\"key\": \"{key}\", \"value\": {value}, \"time_ms\": 1.0, \
             \"metadata\": {{\"is_error\": {error}}}}}\n"
        )
    };
    let text: String = lines.iter().map(line).collect();
    Detail::read(text.as_bytes()).expect("a log")
}

fn outcome(verdict: Verdict, lines: &[(&str, &str)]) -> TestOutcome {
    TestOutcome {
        verdict,
        reasons: vec!["LoadGen's own words".to_owned()],
        detail: detail(lines),
        ..TestOutcome::default()
    }
}

/// A Server run of 480 queries at 800/s, of which 475/s were completed.
const SLOW: &[(&str, &str)] = &[
    ("effective_scenario", "\"Server\""),
    ("effective_test_mode", "\"PerformanceOnly\""),
    ("effective_target_qps", "800"),
    ("effective_target_latency_ns", "100000000"),
    ("effective_target_latency_percentile", "0.99"),
    ("effective_min_duration_ms", "600"),
    ("effective_max_duration_ms", "0"),
    ("effective_min_query_count", "100"),
    ("result_validity", "\"INVALID\""),
    ("result_perf_constraints_met", "false"),
    ("result_min_duration_met", "true"),
    ("result_min_queries_met", "true"),
    ("early_stopping_met", "false"),
    (
        "early_stopping_result",
        "\" * Run unsuccessful.  * Processed 480 queries.  * Would need to run at least 39208 more \
         queries,  with the run being successful if every additional  query were under latency.\"",
    ),
    ("result_query_count", "480"),
    ("result_overlatency_query_count", "351"),
    ("result_scheduled_samples_per_sec", "798.014"),
    ("result_completed_samples_per_sec", "474.549"),
    ("result_min_latency_ns", "2215283"),
    ("result_max_latency_ns", "409138948"),
    ("result_mean_latency_ns", "196040701"),
    ("result_50.00_percentile_latency_ns", "187287096"),
    ("result_90.00_percentile_latency_ns", "366343856"),
    ("result_99.00_percentile_latency_ns", "402702148"),
    ("result_99.90_percentile_latency_ns", "409138948"),
];

fn but(changes: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    let kept = SLOW
        .iter()
        .filter(|(key, _)| changes.iter().all(|(k, _)| k != key));
    kept.chain(changes).copied().collect()
}

fn read(verdict: Verdict, lines: &[(&str, &str)]) -> (LoadgenRecord, Vec<String>) {
    let outcome = outcome(verdict, lines);
    let record = record(&outcome, TestMode::PerformanceOnly, None);
    let reasons = reasons_of(&outcome, &record, &Provenance::default());
    (record, reasons)
}

#[test]
fn a_rate_above_the_machine_is_named_with_what_to_turn() {
    let (l, reasons) = read(Verdict::Invalid, SLOW);
    assert_eq!(l.scenario.as_str(), "Server");
    assert_eq!(l.mode.as_str(), "PerformanceOnly");
    assert_eq!((l.valid, l.asked_mode), (Some(false), None));
    assert_eq!(l.scheduled_per_s, Some(798.014));
    assert_eq!(l.completed_per_s, Some(474.549));
    assert_eq!((l.queries, l.over_limit), (Some(480), Some(351)));
    let p99 = &l.limits[0];
    assert_eq!(p99.name.as_str(), "p99 latency");
    assert_eq!(p99.limit, 100_000.0);
    assert!(!p99.met);
    assert_eq!(p99.was, Some(402_702.148));
    assert_eq!(p99.setting.as_str(), "server_target_latency_ns");
    let early = l.early_stopping.expect("Server has it");
    assert_eq!((early.met, early.needs), (false, Some(39_688)));
    let expected = "p99 latency was 403 ms of at most 100 ms: 475 samples/s of 798 were completed; \
                    lower --target-qps, now 800, or raise server_target_latency_ns";
    assert_eq!(reasons, [expected]);
}

#[test]
fn limits_are_those_of_the_scenario_and_what_they_came_to() {
    let (l, _) = read(Verdict::Invalid, SLOW);
    let names: Vec<_> = l.limits.iter().map(|l| (l.name.as_str(), l.met)).collect();
    assert_eq!(
        names,
        [
            ("p99 latency", false),
            ("duration", true),
            ("queries", true)
        ]
    );
    // 479 intervals at 798.014 per second.
    let lasted = l.limits[1].was.expect("a duration");
    assert!((lasted - 600_240.0).abs() < 1.0, "{lasted}");
    assert_eq!((l.limits[2].limit, l.limits[2].was), (100.0, Some(480.0)));
    let latency = l.latency.expect("a performance run");
    assert_eq!(latency.p50_us, 187_287.096);
    assert_eq!(latency.p999_us, 409_138.948);
}

#[test]
fn a_percentile_that_loadgen_does_not_list_has_its_verdict_alone() {
    let lines = but(&[("effective_target_latency_percentile", "0.85")]);
    let (l, reasons) = read(Verdict::Invalid, &lines);
    assert_eq!(l.limits[0].name.as_str(), "p85 latency");
    assert_eq!(l.limits[0].was, None);
    assert!(!l.limits[0].met);
    assert_has(&reasons[0], &["p85 latency was more of at most 100 ms"]);
}

#[test]
fn too_few_queries_to_be_sure_say_how_many_it_takes() {
    let lines = but(&[
        ("effective_target_latency_ns", "500000000"),
        ("result_perf_constraints_met", "true"),
        (
            "early_stopping_result",
            "\" * Run unsuccessful.  * Processed 480 queries.  * Would need to run at least 281 \
             more queries,\"",
        ),
    ]);
    let (_, reasons) = read(Verdict::Invalid, &lines);
    let expected = "early stopping: 480 queries are too few to be sure of the percentile; raise \
                    --samples (min_query_count) to 761, or --duration-s to 1";
    assert_eq!(reasons, [expected]);
}

const SHORT: &[(&str, &str)] = &[
    ("effective_scenario", "\"Offline\""),
    ("effective_test_mode", "\"PerformanceOnly\""),
    ("effective_target_qps", "400"),
    ("effective_samples_per_query", "264"),
    ("effective_min_sample_count", "264"),
    ("effective_min_duration_ms", "600"),
    ("result_min_duration_met", "false"),
    ("result_min_queries_met", "true"),
    ("early_stopping_met", "true"),
    ("early_stopping_result", "\"\""),
    ("result_query_count", "1"),
    ("result_samples_per_second", "472.363"),
    ("result_max_latency_ns", "558892261"),
];

#[test]
fn a_run_that_was_too_short_names_the_rate_to_give() {
    let (l, reasons) = read(Verdict::Invalid, SHORT);
    assert_eq!((l.completed_per_s, l.early_stopping), (Some(472.363), None));
    assert_eq!(l.limits[1].name.as_str(), "samples");
    assert_eq!(l.limits[1].was, Some(264.0));
    let expected = "duration was 559 ms of at least 600 ms; LoadGen made samples for 400 a second \
                    beforehand: raise --target-qps to 520, a tenth above what was completed";
    assert_eq!(reasons, [expected]);
    // A hundredth of a run does not determine the rate of the whole.
    let shorter = [
        ("result_max_latency_ns", "3510000"),
        ("result_samples_per_second", "28522.1"),
    ];
    let (_, reasons) = read(Verdict::Invalid, &[&shorter[..], SHORT].concat());
    let words = "raise --target-qps to 57045, twice what was completed: 3.51 ms are too short";
    assert!(reasons[0].contains(words), "{reasons:?}");
}

#[test]
fn bounds_on_tokens_go_in_the_place_of_the_bound_on_latency() {
    let lines = but(&[
        ("requested_server_ttft_latency", "2000000000"),
        ("requested_server_tpot_latency", "100000000"),
        (
            "result_first_token_99.00_percentile_latency_ns",
            "2500000000",
        ),
        (
            "result_time_per_output_token_99.00_percentile_ns",
            "50000000",
        ),
    ]);
    let (l, _) = read(Verdict::Invalid, &lines);
    let bounds: Vec<_> = l.limits[..2]
        .iter()
        .map(|l| (l.name.as_str(), l.met))
        .collect();
    assert_eq!(bounds, [("p99 TTFT", false), ("p99 TPOT", true)]);
    assert_eq!((l.limits[0].was, l.over_limit), (Some(2_500_000.0), None));
}

/// With tokens, LoadGen's `early_stopping_latency_ss` is the estimate of TTFT.
#[test]
fn an_early_stopping_estimate_is_of_the_time_that_loadgen_estimated() {
    let text = |ns: u32| {
        format!(
            "\" * Processed at least 64 queries (900).  * Would discard 70 highest latency \
             queries.  * Early stopping 90.0th percentile estimate: {ns}  * Early stopping 99.0th \
             percentile estimate: 99000000\""
        )
    };
    let (own, ttft, tpot) = (text(43_900_000), text(8_540_000), text(310_000));
    let lines = |scenario, met, texts: &[(&'static str, &str)], last| {
        let texts = texts.iter().map(|(key, text)| (*key, text.to_string()));
        let head = [
            ("effective_scenario", scenario),
            ("early_stopping_met", met),
        ];
        let ends = [
            ("early_stopping_latency_ss", last),
            ("early_stopping_latency_ms", "99000000"),
        ];
        let all = head
            .into_iter()
            .chain(ends)
            .map(|(key, value)| (key, value.to_owned()));
        let all: Vec<_> = all.chain(texts).collect();
        let all: Vec<_> = all
            .iter()
            .map(|(key, value)| (*key, value.as_str()))
            .collect();
        let early = read(Verdict::Valid, &all)
            .0
            .early_stopping
            .expect("early stopping");
        let estimates = [
            early.estimate_us,
            early.ttft_estimate_us,
            early.tpot_estimate_us,
        ];
        (estimates, early.text)
    };
    let of_latency = [("early_stopping_result", own.as_str())];
    let of_tokens = [
        ("early_stopping_ttft_result", ttft.as_str()),
        ("early_stopping_tpot_result", tpot.as_str()),
    ];
    let single = "\"SingleStream\"";
    let found = lines(single, "true", &of_latency, "43900000").0;
    assert_eq!(found, [Some(43_900.0), None, None]);
    let (found, words) = lines(single, "true", &of_tokens, "8540000");
    assert_eq!(found, [None, Some(8_540.0), Some(310.0)]);
    assert_has(&words, &["TTFT: Processed at", "TPOT: Processed at"]);
    assert_eq!(lines(single, "false", &of_tokens, "8540000").0, [None; 3]);
    // In MultiStream, LoadGen estimates the latency of queries in all texts.
    let found = lines("\"MultiStream\"", "true", &of_tokens, "0").0;
    assert_eq!(found, [Some(99_000.0), None, None]);
}

#[test]
fn what_loadgen_adds_to_our_own_times_is_its_lateness() {
    let mut ours = Histograms::new();
    (0..10).for_each(|_| {
        ours.record(&SampleTimes {
            completed_ns: 196_000_000,
            ..SampleTimes::default()
        });
    });
    let o = outcome(Verdict::Invalid, SLOW);
    let table = ours.table();
    let own = OwnRecords {
        histograms: &ours,
        stages: &table,
        shortest_us: 195_000.0,
        told_us: 2.5,
    };
    let l = record(&o, TestMode::PerformanceOnly, Some(own));
    assert_eq!(l.late_mean_us, Some(40.701));
    let s = l
        .scheduled_to_issue
        .expect("LoadGen says how long samples took");
    assert_eq!((s.mean_us, s.told_us, s.count), (43.201, 2.5, 10));
    let total = table.get(Stage::Total).expect("a row").mean_us;
    let theirs = l.latency.expect("latencies").mean_us;
    assert!((s.mean_us + total - s.told_us - theirs).abs() < 0.01);
    // Latencies of queries of several samples are not latencies of samples.
    let lines = but(&[("effective_scenario", "\"MultiStream\"")]);
    let o = outcome(Verdict::Valid, &lines);
    let l = record(&o, TestMode::PerformanceOnly, Some(own));
    assert_eq!(l.late_mean_us, None);
    // The log also has the latencies of samples.
    assert_eq!(l.scheduled_to_issue.map(|s| s.mean_us), Some(43.201));
}

#[test]
fn reasons_that_are_new_to_us_are_loadgens_own() {
    let lines = [("effective_scenario", "\"Server\"")];
    let (_, reasons) = read(Verdict::Invalid, &lines);
    assert_eq!(reasons, ["LoadGen's own words"]);
}

fn by(field: &str, value: &str, from: &str) -> Provenance {
    let mut given = Provenance::default();
    given.set(field, value, from);
    given
}

fn first(lines: &[(&str, &str)], given: &Provenance) -> String {
    let outcome = outcome(Verdict::Invalid, lines);
    let record = record(&outcome, TestMode::PerformanceOnly, None);
    reasons_of(&outcome, &record, given).swap_remove(0)
}

#[test]
fn the_maximum_that_ended_the_run_is_named_with_its_origin_and_no_other_setting() {
    let ended = |words: &'static str, effective: (&'static str, &'static str)| {
        but(&[
            ("result_min_duration_met", "false"),
            ("result_perf_constraints_met", "true"),
            ("effective_target_latency_ns", "500000000"),
            ("error_runtime", words),
            effective,
        ])
    };
    let lines = ended(
        "\"IssueQueryThread 0 Ending early: Too many outstanding queries. issued 2\"",
        ("effective_max_async_queries", "1"),
    );
    let said = first(&lines, &by("server_max_async_queries", "1", "f.yaml:9"));
    let expected = "server_max_async_queries, 1 (f.yaml:9), ended the run; more queries";
    assert!(
        said.contains(expected) && !said.contains("--target-qps"),
        "{said}"
    );
    let lines = ended(
        "\"IssueQueryThread 0 Ending early: Max query count reached. query_count 100\"",
        ("effective_max_query_count", "100"),
    );
    let said = first(&lines, &by("max_query_count", "100", "user.conf:2"));
    assert_has(&said, &["max_query_count, 100 (user.conf:2), ended"]);
    assert!(!said.contains("lower"), "{said}");
    let lines = ended(
        "\"IssueQueryThread 0 Ending early: Max test duration reached. duration_ns 5\"",
        ("effective_max_duration_ms", "500"),
    );
    let said = first(&lines, &Provenance::default());
    assert_has(&said, &["max_duration_ms, 500, ended the run; raise it"]);
    // A maximum that did not end the run is not named.
    let lines = [&[("effective_max_duration_ms", "700000")], SHORT].concat();
    let said = first(&lines, &Provenance::default());
    assert!(!said.contains("max_duration"), "{said}");
}

#[test]
fn a_lower_rate_is_not_advised_where_the_median_breaks_the_bound_by_itself() {
    let kept_up = [("result_completed_samples_per_sec", "797.9")];
    let said = first(&but(&kept_up), &Provenance::default());
    let words = [
        "p50 is 187 ms, above the bound by itself",
        "raise server_target_latency_ns",
    ];
    assert!(words.iter().all(|w| said.contains(w)), "{said}");
    assert!(!said.contains("lower --target-qps"), "{said}");
    // A run whose minimum exceeds the bound gets the same advice under overload.
    let said = first(
        &but(&[("result_min_latency_ns", "150000000")]),
        &Provenance::default(),
    );
    assert!(said.contains("the least is 150 ms"), "{said}");
    // In overload, the advice names the origin of the rate.
    let said = first(SLOW, &by("server_target_qps", "800", "user.conf:3"));
    assert_has(
        &said,
        &["lower --target-qps, now 800 (user.conf:3), or raise"],
    );
    // The advice never raises a bound of the rules.
    let rules = by("server_target_latency_ns", "100000000", MLPERF_CONF);
    assert!(!first(&but(&kept_up), &rules).contains("raise"));
}

#[test]
fn a_stream_that_ran_out_of_queries_names_the_rate_to_give_and_what_gave_it() {
    let stream = [
        ("effective_scenario", "\"MultiStream\""),
        ("effective_test_mode", "\"PerformanceOnly\""),
        ("effective_min_duration_ms", "10000"),
        ("result_min_duration_met", "false"),
        ("result_min_queries_met", "true"),
        ("effective_min_query_count", "100"),
        ("result_query_count", "2501"),
    ];
    let field = "multi_stream_expected_latency_ns";
    let said = first(&stream, &by(field, "8000000", "f.yaml:4"));
    let expected = "LoadGen made 2501 queries beforehand, from multi_stream_expected_latency_ns \
                    (f.yaml:4), and 7533 a second were answered: raise --target-qps to 8287";
    assert!(said.contains(expected), "{said}");
    let said = first(&stream, &by(field, "8000000", "--set"));
    assert_has(&said, &["(--set goes before --target-qps) to 120"]);
}

#[test]
fn a_setting_that_the_audit_config_sets_is_not_to_be_turned_elsewhere() {
    let lines = but(&[
        ("effective_target_latency_ns", "500000000"),
        ("result_perf_constraints_met", "true"),
    ]);
    let said = first(&lines, &by("min_query_count", "100", "audit.config:9"));
    assert_has(
        &said,
        &["min_query_count (audit.config:9 goes before --samples)"],
    );
}
