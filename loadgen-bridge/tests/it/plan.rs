//! A plan equals LoadGen's run.

use std::path::Path;
use std::sync::Arc;

use crate::common::{Inline, Samples, logs, settings};
use loadgen_bridge::{PhaseKind, Plan, Queries, Scenario, TestMode, TestSettings, run_test};

/// Runs over `total` samples, of which LoadGen loads `loaded` at once, and compares with the plan.
fn as_planned(folder: &Path, settings: &TestSettings, [total, loaded]: [usize; 2]) {
    let plan = Plan::of(settings, total, loaded).unwrap();
    let (sut, qsl) = (
        Arc::new(Inline::default()),
        Arc::new(Samples::new(total, loaded)),
    );
    let outcome = run_test(sut, qsl, settings, &logs(folder), None).unwrap();
    let made = |accuracy: bool| {
        let mut phases = outcome.detail.phases.iter();
        let phase = phases.find(|p| (p.kind == PhaseKind::Accuracy) == accuracy);
        phase.map(|p| Queries {
            count: p.queries,
            samples: p.samples,
            exact: true,
        })
    };
    assert_eq!([plan.accuracy, plan.performance], [made(true), made(false)]);
    let effective = plan.effective;
    for (key, value) in [
        ("min_query_count", effective.min_query_count),
        ("min_sample_count", effective.min_sample_count),
        ("samples_per_query", effective.samples_per_query),
        ("target_duration_ms", effective.target_duration_ms),
        (
            "performance_sample_count",
            effective.performance_sample_count,
        ),
        ("accuracy_sample_count", effective.accuracy_sample_count),
    ] {
        let logged = outcome.detail.whole(&format!("effective_{key}"));
        assert_eq!(logged, Some(value), "{key}");
    }
}

/// Settings of a performance run of half a second, for a SUT that answers at once.
fn short(scenario: Scenario) -> TestSettings {
    TestSettings {
        min_duration_ms: 500,
        server_target_qps: 1999.0,
        offline_expected_qps: 1234.0,
        single_stream_expected_latency_ns: 7e5,
        multi_stream_expected_latency_ns: 3e6,
        ..settings(scenario, TestMode::PerformanceOnly)
    }
}

macro_rules! planned {
    ($($name:ident: $scenario:ident over $samples:expr, |$s:ident| $change:expr;)*) => {$(
        isolated!($name, |folder| {
            let mut $s = short(Scenario::$scenario);
            $change;
            as_planned(folder, &$s, $samples);
        });
    )*};
}

planned! {
    server_makes_as_many_as_arrive_in_time: Server over [64, 48], |s| s.schedule_rng_seed = 9;
    server_makes_its_count_where_that_is_more: Server over [64, 48], |s| s.min_query_count = 3001;
    server_makes_whole_passes_where_all_are_issued_equally: Server over [70, 61],
        |s| s.sample_concatenate_permutation = true;
    server_issues_each_once_where_they_are_unique: Server over [70, 61],
        |s| s.performance_issue_unique = true;
    single_stream_makes_twice_the_queries_of_its_time: SingleStream over [64, 48],
        |s| s.qsl_rng_seed = 7;
    single_stream_makes_whole_passes_where_all_are_issued_equally: SingleStream over [600, 500],
        |s| (s.sample_concatenate_permutation, s.min_query_count) = (true, 100);
    multi_stream_makes_twice_the_queries_of_its_time: MultiStream over [64, 48],
        |s| s.multi_stream_samples_per_query = 5;
    multi_stream_makes_whole_passes_where_all_are_issued_equally: MultiStream over [64, 48],
        |s| s.sample_concatenate_permutation = true;
    offline_makes_a_tenth_more_than_fits_in_its_time: Offline over [64, 48],
        |s| s.qsl_rng_seed = 7;
    offline_makes_whole_passes_where_all_are_issued_equally: Offline over [64, 48],
        |s| s.sample_concatenate_permutation = true;
    offline_runs_each_sample_once_before_a_submissions_performance: Offline over [70, 48],
        |s| s.mode = TestMode::SubmissionRun;
    multi_stream_fills_up_the_last_query_of_each_set: MultiStream over [61, 23],
        |s| s.mode = TestMode::AccuracyOnly;
    offline_makes_its_count_at_a_rate_of_0: Offline over [64, 64],
        |s| (s.offline_expected_qps, s.min_query_count) = (0.0, 77);
}
