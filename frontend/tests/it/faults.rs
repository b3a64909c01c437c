//! Partial answers while an accelerator is killed or stopped, or its cable is cut, between a
//! sample's first and last token. (The simulated world tries the moments; `cargo xtask world
//! --processes` breaks single connections.)

use std::{path::Path, process::Command, thread::sleep, time::Duration};

use crate::common::{
    ProgramEnd, Running, TestFolder, accelerator, accelerator_in,
    faults::{QUICK, Workload},
    free_ports,
    netns::Star,
    words,
};
use serde_json::Value;

/// One token per millisecond: most samples in flight have their first token but not their last.
const SLOW: &str = "{sequences: 64, step_us: 1000, min_tokens: 2, vocab: 1000}";

/// An accelerator with the engine `tokens`, and a frontend that verifies each token. LoadGen
/// measures tokens, with bounds that no run exceeds.
fn model() -> Workload {
    let model = "model: {name: llm, inputs: [{name: prompt, dtype: i32, shape: [96], ragged: \
                 true}], output: {name: tokens, dtype: i32, shape: [40], ragged: true}}\n";
    let engine = format!("engine: {{kind: tokens, tokens: {SLOW}}}\n");
    Workload {
        here: format!(
            "{model}{engine}verify: tokens\ndataset: {{kind: tokens, count: 20000, min_len: 1, \
             max_len: 96, vocab: 32000, seed: 7}}\n{QUICK}"
        ),
        there: format!("{model}{engine}"),
        server: "--scenario server --target-qps 1000 --duration-s 3 \
                 --set use_token_latencies=1 --set server_ttft_latency=600000000000 \
                 --set server_tpot_latency=600000000000 \
                 --set server_target_latency_percentile=0.9",
    }
}

/// Starts the accelerators `acc-a` and `acc-b`, and returns them with their control addresses.
fn two(place: &TestFolder) -> ([Running; 2], [String; 2]) {
    let controls = free_ports::<2>().map(|port| format!("127.0.0.1:{port}"));
    let start = |k: usize| {
        let at = [&*controls[k], "127.0.0.1:0"];
        let config = model().accelerator(place, ["acc-a", "acc-b"][k], at, "");
        accelerator(place, &config)
    };
    ([start(0), start(1)], controls)
}

/// Starts a Server run, and waits until most samples in flight have their first token.
fn midway(place: &TestFolder, mut command: Command) -> Running {
    command.args(words(model().server));
    let mut running = Running::start(place, "frontend", command);
    // From here on all samples are LoadGen's.
    running.wait_until_loadgen_runs(place, "out");
    sleep(Duration::from_millis(700));
    running
}

fn of(what: &Value, key: &str) -> u64 {
    let number = what[key].as_u64();
    number.unwrap_or_else(|| panic!("no number {key} in {what:#}"))
}

/// Checks that every sample has one answer with its own tokens and count, and one first token, and
/// that samples were sent again behind their first token.
fn must_be_whole(place: &TestFolder, ended: ProgramEnd) {
    let ended = ended.with_code(0);
    let said = format!("{}{}", ended.stdout, ended.stderr);
    let s = place.summary("out");
    let (ledger, tokens) = (&s["ledger"], &s["tokens"]);
    assert!(of(ledger, "lost_connections") > 0, "{said}");
    assert_eq!(of(ledger, "emptied"), 0, "{said}");
    assert_eq!(ledger["issued"], ledger["answered"], "{said}");
    assert_eq!(s["mismatches"].as_array().map(Vec::len), Some(0), "{said}");
    assert_eq!(tokens["first_tokens"], s["samples"], "{said}");
    assert_eq!(of(tokens, "contradicted"), 0, "{said}");
    assert_eq!(of(tokens, "too_short"), 0, "{said}");
    let begun = of(tokens, "parts_taken") - of(tokens, "parts_before_last");
    assert!(
        begun > 0,
        "none was between its first token and its last: {said}"
    );
}

#[test]
fn answers_in_parts_outlast_a_node_that_is_killed_or_stopped() {
    for (signal, stream) in [(libc::SIGKILL, "first"), (libc::SIGSTOP, "all")] {
        let place = TestFolder::new();
        let ([victim, _second], controls) = two(&place);
        let nics = "nics: [{address: 127.0.0.1, connections: 2}]\n";
        let more = format!("{nics}stream: {stream}\n");
        let config = model().frontend(&place, &controls.each_ref().map(|c| &**c), &more);
        let frontend = midway(&place, place.frontend(&config, "out", &[]));
        victim.signal(signal);
        must_be_whole(&place, frontend.end());
    }
}

#[test]
#[ignore = "takes network namespaces, and root to make them: a step of `cargo xtask test`"]
fn answers_in_parts_outlast_a_cable_that_is_cut() {
    let (place, star) = (TestFolder::new(), Star::new());
    let token = place.write("token", "0123456789abcdef".repeat(4));
    let token = format!("token_file: {}\n", token.display());
    let start = |k: usize| {
        let at = [7400, 7410].map(|port| format!("10.97.{k}.2:{port}"));
        let at = at.each_ref().map(|at| &**at);
        let config = model().accelerator(&place, ["acc-a", "acc-b"][k], at, &token);
        accelerator_in(&star.leaves[k], &place, &config)
    };
    let _accelerators = [start(0), start(1)];
    let nics = "nics: [{address: 10.97.0.1, connections: 2}]\n";
    let more = format!("{nics}stream: first\n{token}");
    let known = ["10.97.0.2:7400", "10.97.1.2:7400"];
    let config = model().frontend(&place, &known, &more);
    let mut command = star.hub.command(Path::new(env!("CARGO_BIN_EXE_frontend")));
    command.arg("--config").arg(config);
    command.arg("--output").arg(place.path("out"));
    let frontend = midway(&place, command);
    star.cut(0);
    must_be_whole(&place, frontend.end());
}
