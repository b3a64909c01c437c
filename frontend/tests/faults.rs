//! Partial answers while accelerators are killed, stopped or cut off, and connections end or carry
//! garbage. The faults come from a seed, and many fall between a sample's first and last token.
//!
//! `QDL_FAULTS` sets the number of trials per test, `QDL_FAULT_SEED` the seed.

mod common;

use std::path::Path;

use common::{
    ProgramEnd, Running, TestFolder, accelerator, assert_has,
    faults::{Fault, QUICK, Trial, Workload, must_say_who},
    free_ports, number_of_environment,
};
use serde_json::Value;

/// LoadGen measures tokens, with bounds that no run exceeds.
const MEASURED: &str = "--set use_token_latencies=1 --set server_ttft_latency=600000000000 \
    --set server_tpot_latency=600000000000 --set server_target_latency_percentile=0.9";

/// One token per millisecond: most samples in flight have their first token but not their last.
const SLOW: &str = "{sequences: 64, step_us: 1000, min_tokens: 2, vocab: 1000}";

/// `here` and `there` follow the model in the configurations of frontend and accelerator.
fn workload(
    there: &str,
    here: &str,
    count: u32,
    server: &'static str,
    offline: &'static str,
) -> Workload {
    let model = "model: {name: llm, inputs: [{name: prompt, dtype: i32, shape: [96], ragged: \
                 true}], output: {name: tokens, dtype: i32, shape: [40], ragged: true}}\n";
    Workload {
        here: format!(
            "{model}{here}dataset: {{kind: tokens, count: {count}, min_len: 1, max_len: 96, \
             vocab: 32000, seed: 7}}\n"
        ),
        there: format!("{model}engine: {there}\n"),
        server,
        offline,
        always: MEASURED,
    }
}

/// An accelerator with the engine `tokens`, and a frontend that verifies each token.
fn model(tokens: &str) -> Workload {
    let engine = format!("{{kind: tokens, tokens: {tokens}}}");
    let here = format!("engine: {engine}\nverify: tokens\n");
    let server = "--scenario server --target-qps 1000 --duration-s 1.5";
    workload(&engine, &here, 20_000, server, "10000")
}

/// An accelerator with the engine `vllm`, whose core is a script in `folder`.
fn scripted_cores(folder: &Path) -> Workload {
    let script = include_str!("../../engines/src/llm_server/vllm/tests/core.py");
    std::fs::write(folder.join("core.py"), script).expect("written");
    let config = r#"{"vocab_size": 32000, "eos_token_id": 2}"#;
    std::fs::write(folder.join("config.json"), config).expect("written");
    let folder = folder.display();
    let engine = format!(
        "{{kind: vllm, vllm: {{model: {folder}, min_tokens: 2, in_flight: 64, \
         command: [python3, {folder}/core.py], args: [--step, \"0.01\"]}}}}"
    );
    let server = "--scenario server --target-qps 100 --duration-s 1.5";
    workload(&engine, "", 2000, server, "400")
}

#[derive(Default)]
struct Struck {
    /// True if connections with samples in flight were lost, or all connections.
    in_mid_run: bool,
    /// Number of samples sent again.
    again: u64,
    /// Number of samples sent again after their first token was reported, with `stream: first`.
    begun: u64,
}

fn judge(trial: &Trial, stream: &str, place: &TestFolder, ended: ProgramEnd) -> Struck {
    let s = place.summary("out");
    if trial.takes_all() && ended.code != Some(0) {
        return must_count_what_it_was_not_told(place, ended, &s);
    }
    let ended = ended.with_code(0);
    let said = format!("{trial:?}: {}{}", ended.stdout, ended.stderr);
    must_be_whole(&s, trial.offline, &said);
    let begun = of(&s["tokens"], "parts_taken") - of(&s["tokens"], "parts_before_last");
    Struck {
        in_mid_run: of(&s["ledger"], "lost_connections") > 0,
        again: of(&s["ledger"], "redispatched"),
        // With `stream: first`, a lost answer had at most one part.
        begun: if stream == "first" { begun } else { 0 },
    }
}

fn of(what: &Value, key: &str) -> u64 {
    let number = what[key].as_u64();
    number.unwrap_or_else(|| panic!("no number {key} in {what:#}"))
}

/// Checks that every sample has one answer with its own tokens and count, and one first token.
fn must_be_whole(s: &Value, offline: bool, said: &str) {
    let ledger = &s["ledger"];
    assert_eq!(of(ledger, "emptied"), 0, "{said}");
    assert_eq!(ledger["issued"], ledger["answered"], "{said}");
    assert_eq!(s["mismatches"].as_array().map(Vec::len), Some(0), "{said}");
    let tokens = &s["tokens"];
    let first = if offline { &Value::Null } else { &s["samples"] };
    assert_eq!(&tokens["first_tokens"], first, "{said}");
    assert_eq!(of(tokens, "contradicted"), 0, "{said}");
    assert_eq!(of(tokens, "too_short"), 0, "{said}");
}

/// Checks that a run without its last accelerator names it, that all received answers were right,
/// and that missing answers are counted.
fn must_count_what_it_was_not_told(place: &TestFolder, ended: ProgramEnd, s: &Value) -> Struck {
    let ended = must_say_who(place, ended);
    let ledger = &s["ledger"];
    let (answered, emptied) = (of(ledger, "answered"), of(ledger, "emptied"));
    assert_eq!(of(ledger, "issued"), answered + emptied, "{}", ended.stdout);
    let tokens = &s["tokens"];
    assert_eq!(of(tokens, "contradicted"), 0, "{}", ended.stdout);
    if let Some(first) = tokens["first_tokens"].as_u64() {
        assert!(
            (answered..=answered + emptied).contains(&first),
            "{}",
            ended.stdout
        );
    }
    Struck {
        in_mid_run: true,
        ..Struck::default()
    }
}

#[test]
fn answers_in_parts_outlast_faults_at_random_moments() {
    trials(&[Fault::Kill, Fault::Stop], 4, &model(SLOW));
}

#[test]
fn answers_of_engine_cores_outlast_faults_at_random_moments() {
    let folder = tempfile::tempdir().expect("a folder");
    let cores = scripted_cores(folder.path());
    trials(&[Fault::Kill, Fault::Core, Fault::Stop], 3, &cores);
}

#[test]
#[ignore = "takes network namespaces and another process's sockets, and root for both: a step of \
            `cargo xtask test`"]
fn answers_in_parts_outlast_cuts_at_random_moments() {
    trials(&[Fault::Cut, Fault::End, Fault::Garble], 3, &model(SLOW));
}

/// Runs trials: kinds of fault and of stream take turns, and all else is random.
fn trials(kinds: &[Fault], default: u64, workload: &Workload) {
    let (count, seed) = (
        number_of_environment("QDL_FAULTS", default),
        number_of_environment("QDL_FAULT_SEED", 1),
    );
    let (mut struck, mut again, mut begun) = (0, 0, 0);
    for i in 0..count {
        let mut trial = Trial::nth(i, seed, kinds);
        let turns = kinds.len() as u64;
        let stream = ["first", "all"][((i / turns + i % turns) % 2) as usize];
        trial.more += &format!("stream: {stream}\n");
        let (place, ended) = trial.run(workload);
        let hit = judge(&trial, stream, &place, ended);
        println!(
            "fault {i} of seed {seed}: {trial:?}: {}, {} samples again, {} had their first token",
            if hit.in_mid_run {
                "struck"
            } else {
                "the run was over already"
            },
            hit.again,
            hit.begun,
        );
        struck += u64::from(hit.in_mid_run);
        again += hit.again;
        begun += hit.begun;
    }
    println!(
        "{count} faults, {struck} of them in mid-run; {again} samples sent again, {begun} of them \
         (of those with `stream: first`) behind their first token, which was not reported again"
    );
    assert!(struck * 2 >= count, "too few came in time: {struck}");
    assert!(begun > 0, "none came between a first token and its last");
}

fn start(place: &TestFolder, node: &str, control: &str, tokens: &str) -> Running {
    let at = [control, "127.0.0.1:0"];
    accelerator(place, &model(tokens).accelerator(place, node, at, ""))
}

/// Two accelerators answer a prompt differently, as two builds of a server may. If the second
/// restarts an answer of the first, the run names the differing first token and fails.
#[test]
fn a_first_token_other_than_the_one_reported_is_named() {
    let place = TestFolder::new();
    let [a, b] = free_ports().map(|p| format!("127.0.0.1:{p}"));
    let other = SLOW.replace("vocab: 1000", "vocab: 900");
    let victim = start(&place, "acc-a", &a, SLOW);
    let _second = start(&place, "acc-b", &b, &other);
    let trial = Trial {
        fault: Fault::Kill,
        second: true,
        offline: false,
        at: 500,
        connections: 2,
        more: String::new(),
    };
    // The accelerators' content differs, so the frontend needs `model_files: any`.
    let nics = "nics: [{address: 127.0.0.1, connections: 2}]\n";
    let more = format!("{nics}stream: first\n{QUICK}model_files: any\n");
    let config = model(SLOW).frontend(&place, &[&a, &b], &more);
    // With verification, each answer of the second accelerator would be an error.
    let command = place.frontend(&config, "out", &["--verify", "none"]);
    let frontend = trial.start(&model(SLOW), &place, command);
    victim.signal(libc::SIGKILL);
    let ended = frontend.end();
    let said = format!("{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.code, Some(4), "{said}");
    let s = place.summary("out");
    assert_eq!(s["ledger"]["issued"], s["ledger"]["answered"], "{said}");
    assert_eq!(s["tokens"]["first_tokens"], s["samples"], "{said}");
    let again = of(&s["ledger"], "redispatched");
    assert!(
        (1..=again).contains(&of(&s["tokens"], "contradicted")),
        "{said}"
    );
    let reason = s["exit"]["reason"].as_str().expect("words");
    assert_has(
        reason,
        &["was sent again, and began with token", "was reported"],
    );
    assert!(place.path("out").join("INVALID").is_file(), "{said}");
}
