//! Runs in which LoadGen measures tokens. Refused if no engine counts tokens; otherwise each sample
//! has its true number and one first token, and the summary reports both.

use std::{
    fs,
    path::PathBuf,
    thread::{self, sleep},
    time::Duration,
};

use crate::common::{
    LLM, PROMPTS, ProgramEnd, Running, TestFolder, accelerator, assert_has, faults::QUICK,
    free_ports, offline, two_of_digests, words,
};
use serde_json::Value;

/// LoadGen measures tokens, with bounds that no run exceeds. Early stopping accepts the 90th
/// percentile after some dozen queries.
const MEASURED: &str = "--set use_token_latencies=1 --set server_ttft_latency=20000000000 \
    --set server_tpot_latency=20000000000 --set server_target_latency_percentile=0.9";

fn measured<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [arguments, &words(MEASURED)].concat()
}

const SERVER: &str = "--scenario server --target-qps 300 --duration-s 0.6";

#[test]
fn tokens_that_an_accelerator_does_not_count_are_refused() {
    let place = TestFolder::new();
    let null = "engine: {kind: \"null\"}\n";
    let (config, _running) = two_of_digests(&place, null, "verify: none\n");
    for scenario in [&words(SERVER)[..], &offline("300")] {
        let ended = place.run(&config, "out", &measured(scenario)).with_code(2);
        let words = ["`null`", "acc-a", "`digest`", "use_token_latencies"];
        assert_has(ended.error(), &words);
        let log = place.path("out").join("mlperf_log_detail.txt");
        assert!(!log.exists(), "LoadGen has begun");
    }
    // The same accelerators serve a run without tokens. Verification finds their wrong answers.
    let arguments = [&offline("300")[..], &["--verify", "digest"]].concat();
    let ended = place.run(&config, "out", &arguments).with_code(4);
    let words = ["does the accelerator run the engine `digest`?"];
    assert_has(&ended.stderr, &words);
    let summary = place.summary("out");
    assert_eq!(summary["accelerators"][0]["engine"], "null");
    assert!(summary.get("tokens").is_none());
}

const ENGINE: &str = "{kind: tokens, tokens: {min_tokens: 2, max_tokens: 32, step_us: 50}}";

/// Two accelerators with the engine `tokens`, and a frontend that knows their answers.
struct Rig {
    place: TestFolder,
    config: PathBuf,
    accelerators: [Running; 2],
}

impl Rig {
    /// Starts accelerators with this engine; `more` is additional YAML of the frontend.
    fn new(engine: &str, more: &str) -> Self {
        let place = TestFolder::new();
        let [a, b] = free_ports();
        let there = format!("{LLM}engine: {engine}");
        let start = |(node, port)| accelerator(&place, &place.accelerator_of(node, port, &there));
        let accelerators = [("acc-a", a), ("acc-b", b)].map(start);
        let yaml = format!(
            "{there}\nverify: tokens\nnics: [{{address: 127.0.0.1, connections: 3}}]\n\
             {PROMPTS}{more}"
        );
        let config = place.frontend_of(&[a, b], &yaml);
        Rig {
            place,
            config,
            accelerators,
        }
    }

    fn run(&self, out: &str, arguments: &[&str]) -> ProgramEnd {
        self.place.run(&self.config, out, arguments)
    }

    /// Runs, and checks that all answers, first tokens, token counts and sample counts are right.
    fn good(&self, out: &str, arguments: &[&str]) -> Value {
        let ended = self.run(out, arguments);
        let said = format!("{arguments:?}: {}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.code, Some(0), "{said}");
        let summary = self.place.summary(out);
        assert_eq!(summary["mismatches"].as_array().map(Vec::len), Some(0));
        summary
    }
}

/// A watchdog that each answer of the tests below outlasts three times.
const SHORT: &str = "deadlines: {watchdog_s: 3, lost_ms: 2900, echo_interval_ms: 100, \
    echo_timeout_ms: 1500, heartbeat_interval_ms: 100, heartbeat_timeout_ms: 1500}\n";

#[test]
fn answers_longer_than_every_deadline_are_valid_while_tokens_are_made() {
    let engine = "{kind: tokens, tokens: {min_tokens: 32, step_us: 300000, sequences: 512}}";
    let server = measured(&words(
        "--scenario server --target-qps 100 --duration-s 0.6",
    ));
    // Without parts, nothing but its steps shows that an engine works.
    let more = format!("{SHORT}warm_up: {{deadline_ms: 3000}}\nstream: none\n");
    let run = |local: &[&str]| {
        let s = Rig::new(engine, &more).good("out", &[&server[..], local].concat());
        assert_eq!(s["valid"], true, "{local:?}");
    };
    thread::scope(|scope| {
        scope.spawn(|| run(&[]));
        run(&["--local"]);
    });
}

#[test]
fn an_engine_that_makes_no_token_ends_the_run() {
    let engine = "{kind: tokens, tokens: {step_us: 60000000}}";
    let rig = Rig::new(engine, &format!("{SHORT}warm_up: {{budget_ms: 0}}\n"));
    for local in [&[][..], &["--local"]] {
        let arguments = [&measured(&words(SERVER))[..], local].concat();
        let ended = rig.run("out", &arguments).with_code(3);
        let words = ["no sample came back for 3 s", "no engine made a token"];
        assert_has(&ended.stderr, &words);
        let s = rig.place.summary("out");
        assert_eq!((&s["valid"], &s["samples"]), (&false.into(), &0.into()));
        assert_eq!(s["ledger"]["issued"], s["ledger"]["emptied"]);
        assert!(rig.place.path("out/INVALID").is_file());
    }
    // The warm-up ends by its own deadline.
    let rig = Rig::new(engine, &format!("{SHORT}warm_up: {{deadline_ms: 1000}}\n"));
    let ended = rig.run("out", &measured(&words(SERVER))).with_code(3);
    assert_has(
        ended.error(),
        &["failed its warm-up", "warm_up.deadline_ms"],
    );
}

#[test]
fn server_counts_the_true_tokens_and_times_each_first_one() {
    // Expected number of writes for the longest answer, of up to 32 tokens.
    for (more, least, most) in [
        ("", 2, 2),
        ("stream: none\n", 1, 1),
        ("stream: all\n", 3, 32),
    ] {
        let rig = Rig::new(ENGINE, more);
        for local in [&["--local"][..], &[]] {
            let s = rig.good("out", &[&measured(&words(SERVER))[..], local].concat());
            // Each answer had its own parts: one, two, or one for each token.
            let t = &s["tokens"];
            assert_eq!(t["parts_taken"], t["parts_before_last"], "{t:#}");
            assert_eq!(t["first_tokens"], s["samples"]);
            let parts = t["parts"]["max"].as_u64().expect("parts");
            assert!((least..=most).contains(&parts), "{t:#}");
            // The engine makes one token a step, however they leave the node.
            let events = [&t["events"]["min"], &t["events"]["max"]];
            assert_eq!(events, [1, 1], "{t:#}");
            let reason = s["exit"]["reason"].as_str().expect("words");
            let whole = reason.contains("whole answers (stream: none)");
            assert_eq!(whole, least == 1, "{reason}");
        }
        let s = rig.place.summary("out");
        let t = &s["tokens"];
        let tokens = t["tokens"].as_f64().expect("tokens");
        let samples = s["samples"].as_f64().expect("samples");
        assert!(tokens >= 2.0 * samples && tokens <= 32.0 * samples);
        let per_s = rig
            .place
            .logged_number("out", "Completed tokens per second");
        assert_eq!(t["per_s"].as_f64(), Some(per_s));
        let each = rig
            .place
            .logged_number("out", "Completed samples per second");
        assert!((per_s / each - tokens / samples).abs() < 0.01 * tokens / samples);
        assert!(
            rig.place
                .logged_number("out", "Mean First Token latency (ns)")
                > 0.0
        );
        let ticks = rig.place.timeline("out").ticks;
        assert_eq!(ticks.iter().map(|t| t.tokens).sum::<u64>() as f64, tokens);
        let good = s["goodput"]["samples"].as_f64().expect("goodput");
        assert_eq!(s["goodput"]["share"].as_f64(), Some(good / samples));
        assert!(s["goodput"]["tokens"].as_f64().expect("tokens") <= tokens);
        assert_eq!(t["input"]["max"], 16);
        let log = fs::read_to_string(rig.place.path("out").join("latency.hlog"));
        assert!(log.expect("written").contains("Tag=ttft,"));
    }
}

#[test]
fn offline_counts_tokens_and_reports_no_first_ones() {
    let rig = Rig::new(ENGINE, "");
    for local in [&[][..], &["--local"]] {
        let arguments = [&measured(&offline("500"))[..], local].concat();
        let s = rig.good("out", &arguments);
        assert_eq!(s["tokens"]["first_tokens"], Value::Null);
        assert!(s.get("goodput").is_none(), "Offline limits no sample");
        assert!(rig.place.logged_number("out", "Tokens per second") > 0.0);
    }
}

#[test]
fn an_accuracy_log_begins_with_the_first_token_and_holds_as_many_as_it_says() {
    let rig = Rig::new(ENGINE, "");
    // The settings of the official TEST06, in the order of its file.
    let audit = rig.place.write(
        "audit.config",
        "# mode dictionary (0 = submission, 1 = accuracy, 2 = performance, 3 = find peak perf)\n\
         *.*.mode = 2\n*.*.accuracy_log_rng_seed = 720381539243781796\n\
         *.*.accuracy_log_sampling_target = 100\n*.*.min_query_count = 100\n*.*.min_duration = 0\n\
         *.*.sample_concatenate_permutation = 0\n",
    );
    let audit = audit.to_str().expect("text");
    for arguments in [&["--mode", "accuracy"][..], &["--audit-config", audit]] {
        rig.good("out", &[&measured(&words(SERVER))[..], arguments].concat());
        let log = rig.place.path("out").join("mlperf_log_accuracy.json");
        let text = fs::read_to_string(log).expect("a log");
        let records: Vec<Value> = serde_json::from_str(&text).expect("JSON");
        assert!(records.len() >= 20, "{}", records.len());
        for r in &records {
            let data = r["data"].as_str().expect("bytes");
            let first = r["token_data"].as_str().expect("bytes");
            assert!(data.starts_with(first) && first.len() == 8, "{r}");
            let count = r["token_count"].as_u64().expect("a count");
            assert_eq!(data.len() as u64, 8 * count, "{r}");
            // Token 2 is EOS: each answer has it once, at the end.
            let ends = |at: usize| data[at..at + 8] == *"02000000";
            let eos = (0..data.len()).step_by(8).filter(|at| ends(*at)).count();
            assert!(eos == 1 && ends(data.len() - 8), "{r}");
        }
    }
}

/// A slow engine: a first token takes about 32 ms, an answer at least 29 s.
const SLOW: &str = "{kind: tokens, tokens: {sequences: 8, prefill_us: 2000, step_us: 1000000, \
    min_tokens: 30, max_tokens: 32}}";

/// Starts an accuracy run, and waits until all samples are in flight and some have first tokens.
fn midway(rig: &Rig, arguments: &[&str]) -> Running {
    let accuracy = ["--scenario", "server", "--mode", "accuracy"];
    let arguments = [&measured(&accuracy)[..], arguments].concat();
    let command = rig.place.frontend(&rig.config, "out", &arguments);
    let mut running = Running::start(&rig.place, "frontend", command);
    running.wait_until_loadgen_runs(&rig.place, "out");
    sleep(Duration::from_millis(700));
    running
}

#[test]
fn samples_without_a_first_token_do_not_end_loadgen_when_the_last_accelerator_dies() {
    let rig = Rig::new(SLOW, QUICK);
    let running = midway(&rig, &["--target-qps", "400", "--warm-up-ms", "0"]);
    for a in &rig.accelerators {
        a.signal(libc::SIGKILL);
    }
    let ended = running.end().with_code(3);
    assert!(rig.place.path("out").join("INVALID").is_file());
    let s = rig.place.summary("out");
    assert_eq!(s["ledger"]["issued"], 200, "{}", ended.stderr);
    assert_eq!(s["ledger"]["emptied"], 200);
    assert_eq!(s["mismatches"].as_array().map(Vec::len), Some(0), "{s}");
}

#[test]
fn samples_without_a_first_token_do_not_end_loadgen_when_a_run_is_interrupted() {
    let rig = Rig::new(SLOW, "");
    // More samples than slots, so that some wait.
    let more = fs::read_to_string(&rig.config).expect("there");
    let more = more.replace("count: 200", "count: 6000");
    rig.place.write("frontend.yaml", more);
    for how in [&["--warm-up-ms", "0"][..], &["--local"]] {
        let arguments = [&["--target-qps", "20000"][..], how].concat();
        let running = midway(&rig, &arguments);
        running.signal(libc::SIGINT);
        running.end().with_code(130);
        assert!(rig.place.path("out").join("INVALID").is_file());
    }
}
