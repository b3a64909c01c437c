//! Tests of the precedence of settings, and of unknown settings.

use clap::Parser;
use qdl::testkit::assert_has;

use super::*;

fn build(args: &[&str], config: &LoadgenConfig) -> Result<Settings> {
    let all = ["frontend", "--config", "f.yaml"].iter().chain(args);
    let args = Args::try_parse_from(all).expect("sound");
    Settings::build(&args, config, &Written::default(), "digits")
}

fn error(args: &[&str]) -> String {
    build(args, &LoadgenConfig::default())
        .expect_err("wrong")
        .to_string()
}

#[test]
fn flags_go_before_the_configuration_and_set_before_flags() {
    let mut config = LoadgenConfig {
        scenario: Some(Scenario::Offline),
        ..LoadgenConfig::default()
    };
    let settings = [
        ("target_qps", "10"),
        ("min_duration", "2000"),
        ("server_coalesce_queries", "true"),
        ("server_target_latency_percentile", "0.9"),
    ];
    config.settings = settings.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let s = build(&[], &config).expect("sound");
    assert_eq!(s.test.scenario, Scenario::Offline);
    assert_eq!(s.test.offline_expected_qps, 10.0);
    assert_eq!(s.test.min_duration_ms, 2000);
    assert!(s.test.server_coalesce_queries);
    assert_eq!(s.target_qps(), Some(10.0));
    assert_eq!(s.folder().parent(), Some(Path::new("results")));
    assert!(s.folder().to_string_lossy().ends_with("-offline") && !s.own_folder);

    let flags = "--scenario server --target-qps 300 --duration-s 1.5 --samples 7 --mode accuracy \
                 --output out";
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let s = build(&flags, &config).expect("sound");
    assert_eq!(s.test.scenario, Scenario::Server);
    assert_eq!(s.test.mode, TestMode::AccuracyOnly);
    assert_eq!(s.test.server_target_qps, 300.0);
    assert_eq!((s.test.min_duration_ms, s.test.min_query_count), (1500, 7));
    assert_eq!((s.folder(), s.own_folder), (Path::new("out"), true));

    let set = ["--set", "server_target_qps=5", "--set=min_query_count=1e3"];
    let s = build(&[&flags[..], &set].concat(), &config).expect("sound");
    assert_eq!(s.test.server_target_qps, 5.0);
    assert_eq!(s.test.min_query_count, 1000);
}

#[test]
fn every_kind_of_field_can_be_set() {
    let set = |pairs: &[&str]| {
        let flags = pairs.iter().flat_map(|p| ["--set", p]);
        let all = ["--scenario", "multi-stream"].into_iter().chain(flags);
        build(&Vec::from_iter(all), &LoadgenConfig::default()).expect("sound")
    };
    let s = set(&[
        "enable_trace=1",
        "qsl_rng_seed=18446744073709551615",
        "samples_per_query=8",
        "target_latency=3.5",
        "server_find_peak_qps_decimals_of_precision=2",
        "ttft_latency=2000",
        "tpot_latency=0.5",
        "mode=find_peak",
    ]);
    assert!(s.log.enable_trace);
    assert_eq!(s.test.qsl_rng_seed, u64::MAX);
    assert_eq!(s.test.multi_stream_samples_per_query, 8);
    assert_eq!(s.test.multi_stream_expected_latency_ns, 3.5e6);
    assert_eq!(s.test.server_ttft_latency, 2_000_000_000);
    assert_eq!(s.test.server_tpot_latency, 500_000);
    assert_eq!(s.test.server_find_peak_qps_decimals_of_precision, 2);
    assert_eq!(s.test.mode, TestMode::FindPeakPerformance);
    assert!(!set(&[]).log.enable_trace, "off unless asked for");
}

#[test]
fn what_is_wrong_is_named() {
    assert!(error(&[]).contains("--scenario"));
    for (flag, value, words) in [
        (
            "--set",
            "target_pqs=1",
            &["`target_pqs`", "server_target_qps"][..],
        ),
        (
            "--set",
            "qps=1",
            &["did you mean ", " or server_target_qps"],
        ),
        ("--set", "zz=1", &["min_query_count"]),
        (
            "--set",
            "min_query_count=many",
            &["--set: min_query_count = many: "],
        ),
        (
            "--set",
            "min_query_count=1.5",
            &["1.5", "it takes a whole number, 0 or more"],
        ),
        ("--set", "server_target_qps=fast", &["it takes a number"]),
        ("--set", "server_target_qps=inf", &["inf", "not finite"]),
        ("--set", "coalesce_queries=7", &["it takes true or false"]),
        ("--duration-s", "nan", &["--duration-s"]),
        ("--target-qps", "nan", &["--target-qps"]),
    ] {
        let said = error(&["--scenario", "server", flag, value]);
        assert_has(&said, words);
        assert!(!said.contains("invalid type"), "{said}");
    }
}

#[test]
fn an_audit_config_goes_before_everything_and_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.config");
    let text = "*.*.mode = 2\n*.Server.target_latency_percentile = 95\n*.*.min_duration = 700\n\
                *.Server.target_latency = 15\n";
    std::fs::write(&path, text).expect("written");
    let path = path.to_str().expect("text");
    let flags = ["--scenario", "server", "--mode", "accuracy"];
    let flags = [&flags[..], &["--audit-config", path]].concat();
    let s = build(&flags, &LoadgenConfig::default()).expect("sound");
    // LoadGen reads the value from the file itself.
    assert_eq!(s.test.mode, TestMode::AccuracyOnly);
    assert_eq!(s.test.min_duration_ms, 10_000);
    assert_eq!(s.runs.mode, TestMode::PerformanceOnly);
    assert_eq!(s.runs.min_duration_ms, 700);
    assert!(s.own_length);
    let note = "--mode: mode = AccuracyOnly has no effect: audit.config:1 sets it to \
                PerformanceOnly";
    assert_eq!(s.provenance.notes(), [note]);
    let all = s.provenance.records(Scenario::Server);
    let given = |name: &str| {
        let found = all.iter().find(|r| r.name == name).expect(name);
        (found.given.value.clone(), found.given.from.clone())
    };
    let pair = |value: &str, line: u8| (value.to_owned(), format!("audit.config:{line}"));
    assert_eq!(given("mode"), pair("PerformanceOnly", 1));
    assert_eq!(given("server_target_latency_percentile"), pair("0.95", 2));
    assert_eq!(given("min_duration_ms"), pair("700", 3));
    assert_eq!(given("server_target_latency_ns"), pair("15000000", 4));
}

#[test]
fn a_rate_of_a_stream_is_whole_nanoseconds() {
    let s = build(
        &["--scenario", "single-stream", "--target-qps", "3000"],
        &LoadgenConfig::default(),
    );
    let ns = s.expect("sound").test.single_stream_expected_latency_ns;
    assert_eq!(ns, 333_333.0);
}

#[test]
fn a_submission_run_without_a_user_conf_names_the_durations_that_apply() {
    let notes = |mode| {
        let flags = ["--scenario", "server", "--mode", mode];
        let s = build(&flags, &LoadgenConfig::default()).expect("sound");
        s.provenance.notes()
    };
    assert!(notes("performance").is_empty());
    let said = notes("submission");
    assert!(
        said.len() == 1 && said[0].contains("--user-conf FILE"),
        "{said:?}"
    );
}

#[test]
fn a_new_folder_has_the_time_and_the_scenario_in_its_name() {
    let name = new_folder(Scenario::MultiStream, UNIX_EPOCH);
    assert!(
        name.starts_with("19") && name.ends_with("-multi-stream"),
        "{name}"
    );
    assert_eq!(name.len(), "2026-11-25T12-58-48-multi-stream".len());
}

#[test]
fn a_value_that_loadgen_cannot_run_with_is_refused_with_its_origin() {
    let flags = ["--scenario", "server", "--target-qps", "0"];
    let s = build(&flags, &LoadgenConfig::default()).expect("read");
    let error = s
        .with_origin(s.runs.check(5, 5).expect_err("no rate"))
        .to_string();
    assert!(
        error.ends_with("0 is not above 0 (--target-qps)"),
        "{error}"
    );
    let flags = ["--scenario", "offline", "--target-qps", "0", "--samples=9"];
    let s = build(&flags, &LoadgenConfig::default()).expect("read");
    s.runs.check(5, 5).expect("a count is enough for Offline");
}

#[test]
fn a_user_conf_of_another_model_is_refused_with_the_line_to_add() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("user.conf");
    std::fs::write(&path, "bert.Server.target_qps = 10\n").expect("written");
    let path = path.to_str().expect("text");
    let text = error(&["--scenario", "server", "--user-conf", path]);
    let advice = "add `digits.Server.target_qps = RATE` or `*.Server.target_qps = RATE`";
    assert!(text.contains("bert") && text.contains(advice), "{text}");
}
