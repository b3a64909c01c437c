use qdl::{
    counters::{Histograms, SampleTimes},
    testkit::assert_has,
};
use record::Summary;
use serde_json::{Value, json};

use super::*;

/// LoadGen's result as in `summary.json`.
fn loadgen(result: Value) -> Option<LoadgenRecord> {
    Some(serde_json::from_value(result).expect("LoadGen's result"))
}

fn latency() -> Value {
    json!({
        "mean_us": 9_000.0, "p50_us": 8_000.0, "p90_us": 15_000.0, "p99_us": 19_000.0,
        "p999_us": 19_500.0, "max_us": 21_000.0,
    })
}

fn limits() -> Value {
    json!([
        {"name": "p99 latency", "setting": "a_setting", "unit": "us", "limit": 10_000.0,
         "was": 19_000.0, "at_most": true, "met": false},
        {"name": "duration", "setting": "a_setting", "unit": "us", "limit": 600_000.0,
         "met": true},
        {"name": "queries", "setting": "a_setting", "unit": "queries", "limit": 100.0,
         "was": 1_480.0, "met": true},
    ])
}

fn phase(name: &str, kind: PhaseKind, samples: u64, step: Option<(f64, bool)>) -> PhaseRecord {
    let mut recorded = Histograms::new();
    (0..samples).for_each(|i| {
        recorded.record(&SampleTimes {
            completed_ns: (i + 1) * 1_000_000,
            ..SampleTimes::default()
        });
    });
    PhaseRecord {
        asked_per_s: step.map(|(qps, _)| qps),
        kept: step.map(|(_, kept)| kept),
        ..PhaseRecord::new(name.to_owned(), kind, recorded.table(), 0.5)
    }
}

fn text(run: RunRecord) -> String {
    let summary = Summary {
        node: "front".to_owned(),
        run,
        ..Summary::default()
    };
    let text = crate::text::summary(&summary, false);
    assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
    text
}

#[test]
fn loadgens_result_looks_like_this() {
    let expected = "\
LoadGen      798/s scheduled, 475/s completed (59.5 %), 351 queries over the bound, 1 error, 3
             warnings
             LoadGen warned: Logging allocation detected (2 times)
             LoadGen warned: CAS failed.
LoadGen's own              p50      p90      p99    p99.9      max     mean  queries
latency, as scheduled  8.00 ms  15.0 ms  19.0 ms  19.5 ms  21.0 ms  9.00 ms    1,480
Samples were issued 41.0 us or more after their scheduled time on average: LoadGen counts that.

limit           asked for                was            of it             set by
p99 latency     at most 10.0 ms          19.0 ms        190 %    NOT MET  a_setting
duration        at least 600 ms          -              -        met      a_setting
queries         at least 100 queries     1,480 queries  1,480 %  met      a_setting
early stopping  at least 39,688 queries  1,480 queries  3.73 %   NOT MET  min_query_count
";
    let (allocated, failed) = ("Logging allocation detected", "CAS failed.");
    let text = text(RunRecord {
        loadgen: loadgen(json!({
            "scenario": "Server", "mode": "PerformanceOnly", "valid": false, "queries": 1_480,
            "over_limit": 351, "scheduled_per_s": 798.0, "completed_per_s": 475.0,
            "latency": latency(), "late_mean_us": 41.0, "limits": limits(),
            "early_stopping": {"met": false, "queries": 1_480, "needs": 39_688},
            "errors": 1, "warnings": 3, "warning_messages": [allocated, failed, allocated],
        })),
        ..RunRecord::default()
    });
    assert!(text.contains(expected), "{text}");
}

#[test]
fn the_percentile_of_a_stream_is_its_result() {
    let text = text(RunRecord {
        loadgen: loadgen(json!({
            "percentile": 90.0, "percentile_us": 2_120.0,
            "early_stopping": {"met": true, "estimate_us": 2_140.0},
        })),
        ..RunRecord::default()
    });
    let line = "LoadGen      p90 latency 2.12 ms (2.14 ms by early stopping's estimate), no errors";
    assert!(text.contains(line), "{text}");
    // With tokens, the estimates are not of the latency.
    let text = self::text(RunRecord {
        loadgen: loadgen(json!({
            "percentile": 90.0, "percentile_us": 43_200.0,
            "early_stopping": {"met": true, "ttft_estimate_us": 8_540.0, "tpot_estimate_us": 310.0},
        })),
        ..RunRecord::default()
    });
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = "p90 latency 43.2 ms, p90 TTFT 8.54 ms, TPOT 310 us by early stopping's estimates";
    assert!(words.join(" ").contains(line), "{text}");
}

fn find_peak() -> RunRecord {
    let step = |n: u64, qps, kept| {
        let name = format!("step {n}");
        phase(&name, PhaseKind::Step, n, Some((qps, kept)))
    };
    RunRecord {
        samples: 6,
        duration_s: 2.0,
        per_s: 160.0,
        target_qps: Some(150.0),
        phases: vec![
            step(1, 100.0, true),
            step(2, 200.0, false),
            step(3, 150.0, true),
        ],
        loadgen: loadgen(json!({"peak_qps": 150.0, "limits": limits()})),
        ..RunRecord::default()
    }
}

#[test]
fn find_peaks_steps_are_its_summary() {
    let text = text(find_peak());
    let expected = "\
step   asked/s  samples    took  done/s      p50      p99    p99.9      max     bound
1          100        1  500 ms    2.00  1.00 ms  1.00 ms  1.00 ms  1.00 ms      kept
2          200        2  500 ms    4.00  1.00 ms  2.00 ms  2.00 ms  2.00 ms  exceeded
3          150        3  500 ms    6.00  2.00 ms  3.00 ms  3.00 ms  3.00 ms      kept
all 3                 6
Times are ours, from the issue of a sample to its completion.
bound is LoadGen's word. It counts from the time for which a sample was scheduled,";
    assert!(text.contains(expected), "{text}");
    let peak = "peak 150 queries/s: by LoadGen's word the highest with p99 latency within 10.0 ms; \
         2 of 3 steps kept that";
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.join(" ").contains(peak), "{text}");
    assert!(text.contains("stages of    step 3, the peak"), "{text}");
    // The line on the whole run omits the last step's rate and the first step's target.
    assert_has(
        &text,
        &["samples      6 in 2.00 s, 3 phases and what lay between\n"],
    );
    assert!(!text.contains("target"), "{text}");
}

#[test]
fn steps_of_different_rates_look_different() {
    let rates = [565.6, 564.99, 2_000.0].map(asked_rate);
    assert_eq!(rates, ["565.6", "564.99", "2,000"]);
}

#[test]
fn a_stream_says_that_loadgens_time_ends_before_ours() {
    let stream = |scenario: &str| {
        text(RunRecord {
            scenario: scenario.to_owned(),
            loadgen: loadgen(json!({"latency": latency(), "late_mean_us": -30.5})),
            ..RunRecord::default()
        })
    };
    let less = "LoadGen's mean is 30.5 us below that of total: its time of a sample ends as";
    let ends = "LoadGen's time of a sample ends as QuerySamplesComplete begins; it issues the next";
    for scenario in ["SingleStream", "MultiStream"] {
        let text = stream(scenario);
        assert!(text.contains(less) && text.contains(ends), "{text}");
    }
    assert!(!stream("Server").contains(ends));
}

#[test]
fn early_stopping_that_is_met_and_offlines_samples_have_their_counts() {
    let text = text(RunRecord {
        loadgen: loadgen(json!({
            "scenario": "Offline", "queries": 1, "latency": latency(),
            "limits": [{"name": "samples", "unit": "samples", "limit": 100.0, "was": 660.0}],
            "early_stopping": {"met": true, "queries": 1_480},
        })),
        ..RunRecord::default()
    });
    let words: Vec<&str> = text.split_whitespace().collect();
    let early = "early stopping enough queries 1,480 queries - met min_query_count";
    assert_has(&words.join(" "), &["19.5 ms 21.0 ms 9.00 ms 660", early]);
}

#[test]
fn a_peak_that_does_not_last_and_none_at_all_say_so() {
    let mut run = find_peak();
    if let Some(l) = &mut run.loadgen {
        l.scheduled_per_s = Some(911.0);
        l.completed_per_s = Some(463.0);
    }
    let words = "not sustained: 463/s of the 911/s scheduled were completed";
    assert!(text(run.clone()).contains(words), "{}", text(run));
    let mut run = find_peak();
    run.phases.truncate(1);
    run.phases[0].kept = Some(false);
    run.loadgen = Some(LoadgenRecord::default());
    let text = text(run);
    assert_has(&text, &["peak         none: the first rate was too high"]);
}

#[test]
fn the_phases_of_a_submission_have_tables_of_their_own() {
    let text = text(RunRecord {
        phases: vec![
            phase("accuracy", PhaseKind::Accuracy, 4, None),
            phase("performance", PhaseKind::Performance, 2, None),
        ],
        ..RunRecord::default()
    });
    let expected = "\
phase        samples    took  done/s      p50      p99    p99.9      max
accuracy           4  500 ms    8.00  2.00 ms  4.00 ms  4.00 ms  4.00 ms
performance        2  500 ms    4.00  1.00 ms  2.00 ms  2.00 ms  2.00 ms
all 2              6
";
    assert!(text.contains(expected), "{text}");
    assert_eq!(text.matches("stages of ").count(), 2, "{text}");
}

#[test]
fn a_mode_that_was_not_asked_for_is_said() {
    let text = text(RunRecord {
        loadgen: loadgen(json!({"mode": "PerformanceOnly", "asked_mode": "AccuracyOnly"})),
        ..RunRecord::default()
    });
    let said = "mode         LoadGen ran PerformanceOnly, though AccuracyOnly";
    assert_has(&text, &[said]);
}

#[test]
fn a_share_is_never_nothing_where_there_is_something() {
    let shares = [0.0, 0.05, 5.0, 20_000.0].map(|was| share(Some(was), 1_000.0));
    assert_eq!(shares, ["0.00 %", "< 0.01 %", "0.50 %", "2,000 %"]);
}
