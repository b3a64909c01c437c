//! The plan that `--check` prints for each model and scenario of the round equals LoadGen's run.

mod common;

use std::fs;

use common::TestFolder;
use loadgen_bridge::Detail;
use submission::round::{Round, newest};

/// Runs each model of the round with `--local` in this scenario: samples of eight bytes in the
/// round's number, the counts of its user.conf, and a rate that keeps the run short.
fn as_promised(scenario: &str, flag: &str) {
    let place = TestFolder::new();
    let round = Round::find(newest()).expect("built in");
    let mut seen = Vec::new();
    for (name, model) in &round.models {
        let conf = match scenario {
            "Interactive" => model.interactive.as_ref(),
            _ => Some(&model.conf),
        };
        let all = model.required.iter().chain(&model.one_of);
        let Some(conf) = conf.filter(|c| all.clone().any(|s| s == scenario) && !seen.contains(*c))
        else {
            continue;
        };
        seen.push(conf.clone());
        let count = model.samples.performance;
        let yaml = format!(
            "node: fe\nmodel: {{name: m, inputs: [{{name: x, dtype: u8, shape: [8]}}], \
             output: {{name: y, dtype: u8, shape: [8]}}}}\n\
             dataset: {{kind: random, count: {count}}}\nengine: {{kind: \"null\"}}\n\
             nics: [{{address: 127.0.0.1}}]\naccelerators: [{{control: 127.0.0.1:1}}]\n\
             loadgen: {{model: {conf}}}\n"
        );
        let config = place.write("fe.yaml", yaml);
        let text = format!(
            "{conf}.*.min_duration = 20\n{conf}.*.min_query_count = {count}\n\
             {conf}.*.performance_sample_count_override = {count}\n\
             {conf}.Server.target_qps = 99999\n{conf}.Offline.target_qps = 99999\n\
             {conf}.SingleStream.target_latency = 0.01\n"
        );
        let user_conf = place.write("user.conf", text);
        let user_conf = user_conf.to_str().expect("text");
        let flags = ["--local", "--scenario", flag, "--user-conf", user_conf];
        let flags = [&flags[..], &["--set", "use_token_latencies=0"]].concat();
        let promised = place.run(&config, "out", &[&flags[..], &["--check"]].concat());
        place.run(&config, "out", &flags).judged();
        let log = fs::read(place.path("out").join("mlperf_log_detail.txt")).expect("a log");
        let detail = Detail::read(&log[..]).expect("LoadGen's");
        let phase = detail.phases.first().expect("a phase");
        let words = format!("{} of {} samples in all", phase.queries, phase.samples);
        let line = promised.stdout.lines().find(|l| l.starts_with("queries"));
        let line = line.unwrap_or(&promised.stderr);
        assert!(
            line.contains(&words),
            "{name} in {scenario}: {words}, not {line}"
        );
        assert!(phase.samples >= count, "{name} in {scenario}");
    }
    assert!(!seen.is_empty());
}

#[test]
fn offline_is_as_promised() {
    as_promised("Offline", "offline");
}

#[test]
fn server_is_as_promised() {
    as_promised("Server", "server");
}

#[test]
fn interactive_is_as_promised() {
    as_promised("Interactive", "server");
}

#[test]
fn single_stream_is_as_promised() {
    as_promised("SingleStream", "single-stream");
}
