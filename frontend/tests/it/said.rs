//! The summary's record of LoadGen: mode, verdict of each phase, and origin of each setting. Each
//! test compares the program's summary with LoadGen's own logs.

use std::{fs, path::Path};

use crate::common::{
    ProgramEnd, TestFolder, assert_has, fetched, one_of_digests, repository, words,
};
use serde_json::Value;

/// An engine that takes 2 ms for each sample.
const SLOW: &str = "engine: {kind: digest, max_batch: 1, delay_us: 2000}\n";

fn local(place: &TestFolder, config: &Path, out: &str, arguments: &[&str]) -> (ProgramEnd, Value) {
    let all = [&["--local"], arguments].concat();
    let ended = place.run(config, out, &all);
    let code = ended.code.expect("an exit code");
    assert!(code <= 1, "{}{}", ended.stdout, ended.stderr);
    let summary = place.summary(out);
    assert_eq!(summary["mismatches"].as_array().map(Vec::len), Some(0));
    (ended, summary)
}

fn phases(summary: &Value) -> Vec<u64> {
    let all = summary["phases"].as_array().expect("phases");
    let samples: Vec<u64> = all
        .iter()
        .map(|p| p["samples"].as_u64().expect("a count"))
        .collect();
    assert_eq!(Some(samples.iter().sum()), summary["samples"].as_u64());
    for phase in all {
        assert_eq!(phase["stages"]["total"]["count"], phase["samples"]);
    }
    samples
}

const FIND_PEAK: &str = "--scenario server --mode find-peak --target-qps 100 --samples 20 \
    --duration-s 0.2 --set target_latency=200 \
    --set server_find_peak_qps_decimals_of_precision=0 \
    --set server_find_peak_qps_boundary_step_size=4";

/// Compares the peak, the steps and their verdicts with LoadGen's log.
#[test]
fn find_peak_shows_the_peak_and_each_step_over_several_connections() {
    let place = TestFolder::new();
    let nics = "nics: [{address: 127.0.0.1, connections: 2}, {address: 127.0.0.1}]\n";
    let (config, _accelerator) = one_of_digests(&place, SLOW, nics);
    let ended = place
        .run(&config, "out", &words(&format!("-v {FIND_PEAK}")))
        .judged();
    let s = place.summary("out");
    assert_eq!(s["mismatches"].as_array().map(Vec::len), Some(0), "{s:#}");
    let detail = place.log("out", "detail");
    let found = detail.split("Found peak performance field: ").nth(1);
    let peak: f64 = found
        .and_then(|rest| rest.split('"').next()?.parse().ok())
        .expect("a peak");
    assert_eq!(s["loadgen"]["peak_qps"], peak);
    // The summary's target rate is the peak, not the rate of the first step.
    assert_eq!(s["mode"], "find_peak");
    assert_eq!(s["target_qps"], peak);
    let tried = detail.matches("\"generated_query_count\"").count();
    let samples = phases(&s);
    assert_eq!(samples.len(), tried, "{:#}", s["phases"]);
    assert!(tried >= 3);
    let steps = s["phases"].as_array().expect("steps");
    let at = |step: &Value| step["asked_per_s"].as_f64().expect("a rate");
    for step in steps {
        assert_eq!(step["kind"], "step");
        let kept = step["kept"].as_bool().expect("a verdict");
        assert_eq!(kept, at(step) <= peak, "{step:#}");
    }
    assert_eq!(at(&steps[0]), 100.0);
    let text = &ended.stdout;
    let line = |word: &str| text.lines().find(|l| l.starts_with(word));
    assert!(
        line("peak ").is_some_and(|l| l.contains("queries/s")),
        "{text}"
    );
    assert!(
        line("step ").is_some_and(|l| l.contains("asked/s")),
        "{text}"
    );
    assert!(line(&format!("all {tried} ")).is_some(), "{text}");
}

#[test]
fn a_submission_run_has_both_phases() {
    let place = TestFolder::new();
    // LoadGen loads the data set in three parts, which make one accuracy phase.
    let config = place.digest_frontend(&[], "performance_sample_count: 200\n");
    let arguments = words(
        "-v --scenario server --mode submission --target-qps 2000 --duration-s 0.5 --set \
         target_latency=2000",
    );
    let (ended, s) = local(&place, &config, "out", &arguments);
    assert_eq!(s["mode"], "submission");
    let names: Vec<_> = s["phases"]
        .as_array()
        .expect("phases")
        .iter()
        .map(|p| &p["name"])
        .collect();
    assert_eq!(names, ["accuracy", "performance"]);
    let samples = phases(&s);
    assert_eq!(samples[0], 500);
    assert_eq!(Some(samples[1]), s["loadgen"]["queries"].as_u64());
    let text = &ended.stdout;
    assert!(text.contains("accuracy and performance"), "{text}");
    let tables = ["\naccuracy ", "\nperformance ", "stages of accuracy"];
    assert_has(text, &tables);
}

#[test]
fn a_performance_run_that_audit_config_made_is_not_called_accuracy() {
    fetched("models/digits.onnx");
    let place = TestFolder::new();
    let config = repository().join("configs/demo/frontend.yaml");
    let audit = "*.*.mode = 2\n*.*.accuracy_log_sampling_target = 100\n";
    let audit = place.write("audit.config", audit);
    let audited = ["--audit-config", audit.to_str().expect("text")];
    let arguments = words("--scenario offline --mode accuracy --samples 700 --duration-s 0");
    let arguments = [&arguments[..], &audited].concat();
    let (ended, s) = local(&place, &config, "out", &arguments);
    assert_eq!(s["mode"], "performance", "{s:#}");
    assert_eq!(s["accuracy"], Value::Null);
    assert_eq!(s["loadgen"]["mode"], "PerformanceOnly");
    assert_eq!(s["loadgen"]["asked_mode"], "AccuracyOnly");
    let text = &ended.stdout;
    assert!(text.contains("Offline: "), "{text}");
    assert!(text.contains("LoadGen ran PerformanceOnly"), "{text}");
    assert!(!text.contains("\naccuracy "), "{text}");
    let mode = setting(&s, "mode");
    assert_eq!(mode["value"], "PerformanceOnly");
    assert_eq!(mode["from"], "audit.config:1");
    assert_eq!(mode["overrode"][0]["from"], "--mode");
    // The note stands before the run on the screen, and in the summary.
    let note = "mode = AccuracyOnly has no effect: audit.config:1 sets it";
    assert_has(&ended.stderr, &[note]);
    assert_has(&s["setting_notes"].to_string(), &[note]);
}

/// The file has the keys of the official one.
#[test]
fn a_compliance_test_runs_with_its_file_as_it_is() {
    fetched("models/digits.onnx");
    let place = TestFolder::new();
    let text = "# A comment\n\n*.*.mode = 2\n*.*.accuracy_log_rng_seed = 7203\n\n\
                *.*.accuracy_log_sampling_target = 100\n*.*.min_query_count = 300\n\
                *.*.min_duration = 0\n*.*.sample_concatenate_permutation = 0\n\
                *.*.test07_accuracy_threshold = 60.5\n";
    let config = repository().join("configs/demo/frontend.yaml");
    let folder = place.path("checkout/compliance/TEST07/digits");
    fs::create_dir_all(&folder).expect("made");
    fs::write(folder.join("audit.config"), text).expect("written");
    let checkout = place.path("checkout");
    let test = [
        "--compliance",
        "TEST07",
        "--checker",
        checkout.to_str().expect("text"),
    ];
    let offline = words("--scenario offline --samples 300 --duration-s 0");
    let (ended, s) = local(&place, &config, "out", &[&offline[..], &test].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(s["loadgen"]["mode"], "PerformanceOnly");
    assert_has(
        &s["setting_notes"].to_string(),
        &["test07_accuracy_threshold is passed over"],
    );
    let kept = place.path("out/files/audit.config");
    assert_eq!(fs::read_to_string(kept).expect("kept"), text);
    assert_eq!(setting(&s, "accuracy_log_rng_seed")["value"], "7203");
    let arguments = ["--scenario", "offline", "--compliance", "test02"];
    let ended = place.run(&config, "none", &arguments).with_code(2);
    assert_has(&ended.stderr, &["with --checker DIR"]);
}

#[test]
fn an_accuracy_run_that_audit_config_made_is_one() {
    fetched("models/digits.onnx");
    let place = TestFolder::new();
    let config = repository().join("configs/demo/frontend.yaml");
    let audit = place.write("audit.config", "*.*.mode = 1\n");
    let audit = audit.to_str().expect("text");
    let arguments = ["--scenario", "offline", "--audit-config", audit];
    let (_, s) = local(&place, &config, "out", &arguments);
    assert_eq!(s["mode"], "accuracy");
    assert_eq!(s["valid"], Value::Null);
    assert!(s["accuracy"].as_f64() > Some(0.97), "{}", s["accuracy"]);
    let (right, answers) = (&s["labelled"]["right"], &s["labelled"]["answers"]);
    let line = fs::read_to_string(place.path("out").join("accuracy.txt")).expect("written");
    assert!(line.starts_with("accuracy=97."), "{line}");
    assert!(
        line.ends_with(&format!("%, good={right}, total={answers}\n")),
        "{line}"
    );
}

#[test]
fn loadgens_result_stands_beside_ours() {
    let place = TestFolder::new();
    let config = place.digest_frontend(&[], SLOW);
    // The engine takes 2 ms for each sample, so no machine keeps the bound of 1 ms.
    let arguments =
        words("-v --scenario server --target-qps 100 --duration-s 0.6 --set target_latency=1");
    let (ended, s) = local(&place, &config, "out", &arguments);
    assert_eq!((ended.code, &s["valid"]), (Some(1), &false.into()));
    let l = &s["loadgen"];
    let own = |key: &str| place.logged_number("out", key);
    let close = |ours: &Value, theirs: f64| {
        let ours = ours.as_f64().expect("a number");
        assert!(
            (ours - theirs).abs() <= theirs * 1e-3,
            "{ours} is not {theirs}"
        );
    };
    close(&l["scheduled_per_s"], own("Scheduled samples per second"));
    close(&l["completed_per_s"], own("Completed samples per second"));
    for (key, name) in [
        ("p50_us", "50.00"),
        ("p99_us", "99.00"),
        ("p999_us", "99.90"),
    ] {
        let theirs = own(&format!("{name} percentile latency"));
        close(&l["latency"][key], theirs / 1e3);
    }
    let bound = &l["limits"][0];
    assert_eq!(bound["limit"], 1_000.0);
    assert_eq!(bound["met"], false);
    assert_eq!(bound["was"], l["latency"]["p99_us"]);
    let rate = setting(&s, "server_target_qps");
    assert_eq!(rate["value"], "100");
    assert_eq!(rate["from"], "--target-qps");
    assert_eq!(l["effective"]["target_qps"], "100");
    // LoadGen issued each query once, and the summary counts each.
    assert_eq!(l["queries"], s["samples"]);
    assert_eq!(phases(&s), [s["samples"].as_u64().expect("a count")]);
    let reason = s["reasons"][0].as_str().expect("a reason");
    assert_has(
        reason,
        &["above the bound by itself", "server_target_latency_ns"],
    );
    assert!(ended.stderr.contains(reason), "{}", ended.stderr);
    let text = &ended.stdout;
    assert_has(
        text,
        &["/s scheduled", "LoadGen's own", "NOT MET", "early stopping"],
    );
    assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
}

fn setting<'a>(summary: &'a Value, name: &str) -> &'a Value {
    let all = summary["settings"].as_array().expect("settings");
    let found = all.iter().find(|s| s["name"] == name);
    found.unwrap_or_else(|| panic!("no setting {name}"))
}
