//! Partial answers while accelerators are killed or stopped, or a cable is cut, mostly between a
//! sample's first and last token. (`cargo xtask world --processes` breaks single connections.)
//!
//! `QDL_FAULTS` sets the number of trials per test, `QDL_FAULT_SEED` the seed.

use std::{path::Path, process::Command, thread::sleep, time::Duration};

use crate::common::{
    ProgramEnd, Running, TestFolder, accelerator, accelerator_in, assert_has,
    faults::{QUICK, Workload},
    free_ports,
    netns::Star,
    number_of_environment, offline, words,
};
use serde_json::Value;

/// One token per millisecond: most samples in flight have their first token but not their last.
const SLOW: &str = "{sequences: 64, step_us: 1000, min_tokens: 2, vocab: 1000}";

/// An accelerator with the engine `tokens`, and a frontend that verifies each token. LoadGen
/// measures tokens, with bounds that no run exceeds.
fn model(tokens: &str) -> Workload {
    let model = "model: {name: llm, inputs: [{name: prompt, dtype: i32, shape: [96], ragged: \
                 true}], output: {name: tokens, dtype: i32, shape: [40], ragged: true}}\n";
    let engine = format!("engine: {{kind: tokens, tokens: {tokens}}}\n");
    Workload {
        here: format!(
            "{model}{engine}verify: tokens\ndataset: {{kind: tokens, count: 20000, min_len: 1, \
             max_len: 96, vocab: 32000, seed: 7}}\n"
        ),
        there: format!("{model}{engine}"),
        server: "--scenario server --target-qps 1000 --duration-s 1.5",
        offline: "10000",
        always: "--set use_token_latencies=1 --set server_ttft_latency=600000000000 \
                 --set server_tpot_latency=600000000000 \
                 --set server_target_latency_percentile=0.9",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// SIGKILL ends the accelerator's process.
    Kill,
    /// SIGSTOP holds the accelerator's process: its sockets stay open and silent.
    Stop,
    /// The network path to the accelerator goes silent.
    Cut,
}

#[derive(Debug)]
struct Trial {
    fault: Fault,
    /// True if the run has a second accelerator, which survives.
    second: bool,
    offline: bool,
    /// Time from the first sample to the fault, in milliseconds.
    at: u64,
    connections: u64,
    stream: &'static str,
}

impl Trial {
    /// Trial `i` of a seed: the kinds of fault and of stream take turns, and all else is random.
    fn nth(i: u64, seed: u64, kinds: &[Fault]) -> Self {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(1_000_003) + i);
        let turns = kinds.len() as u64;
        Trial {
            fault: kinds[(i % turns) as usize],
            second: i / turns % 3 != 1,
            offline: random.u64(..3) == 0,
            at: random.u64(..1200),
            connections: 1 + random.u64(..4),
            stream: ["first", "all"][((i / turns + i % turns) % 2) as usize],
        }
    }

    fn run(&self, of: &Workload) -> (TestFolder, ProgramEnd) {
        let place = TestFolder::new();
        let nics = |address: &str| {
            let (n, stream) = (self.connections, self.stream);
            let nics = format!("nics: [{{address: {address}, connections: {n}}}]\n");
            format!("{nics}stream: {stream}\n{QUICK}")
        };
        let nodes = &[("acc-a", 0), ("acc-b", 1)][..1 + usize::from(self.second)];
        if self.fault == Fault::Cut {
            let star = Star::new();
            let token = place.write("token", "0123456789abcdef".repeat(4));
            let token = format!("token_file: {}\n", token.display());
            let start = |(node, k): &(&str, usize)| {
                let at = [7400, 7410].map(|port| format!("10.97.{k}.2:{port}"));
                let at = at.each_ref().map(String::as_str);
                let config = of.accelerator(&place, node, at, &token);
                accelerator_in(&star.leaves[*k], &place, &config)
            };
            let _accelerators: Vec<_> = nodes.iter().map(start).collect();
            let known = &["10.97.0.2:7400", "10.97.1.2:7400"][..nodes.len()];
            let config = of.frontend(&place, known, &(nics("10.97.0.1") + &token));
            let mut command = star.hub.command(Path::new(env!("CARGO_BIN_EXE_frontend")));
            command.arg("--config").arg(config);
            command.arg("--output").arg(place.path("out"));
            let frontend = start_until(self, of, &place, command);
            star.cut(0);
            let ended = frontend.end();
            return (place, ended);
        }
        let controls = free_ports::<2>().map(|p| format!("127.0.0.1:{p}"));
        let start = |(node, k): &(&str, usize)| {
            let at = [&*controls[*k], "127.0.0.1:0"];
            accelerator(&place, &of.accelerator(&place, node, at, ""))
        };
        let accelerators: Vec<_> = nodes.iter().map(start).collect();
        let known: Vec<_> = controls.iter().map(String::as_str).collect();
        let config = of.frontend(&place, &known[..nodes.len()], &nics("127.0.0.1"));
        let frontend = start_until(self, of, &place, place.frontend(&config, "out", &[]));
        accelerators[0].signal(match self.fault {
            Fault::Kill => libc::SIGKILL,
            _ => libc::SIGSTOP,
        });
        let ended = frontend.end();
        (place, ended)
    }
}

/// Starts the frontend and waits until the time of the fault.
fn start_until(trial: &Trial, of: &Workload, place: &TestFolder, mut command: Command) -> Running {
    command.args(match trial.offline {
        true => offline(of.offline).to_vec(),
        false => words(of.server),
    });
    command.args(words(of.always));
    let mut running = Running::start(place, "frontend", command);
    // From here on all samples are LoadGen's.
    running.wait_until_it_says(" up in ");
    sleep(Duration::from_millis(trial.at));
    running
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

fn judge(trial: &Trial, place: &TestFolder, ended: ProgramEnd) -> Struck {
    let s = place.summary("out");
    if !trial.second && ended.code != Some(0) {
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
        begun: if trial.stream == "first" { begun } else { 0 },
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
    let ended = ended.with_code(3);
    assert!(ended.error().contains("acc-a"), "{}", ended.stderr);
    let invalid = place.path("out/INVALID").is_file();
    assert!(invalid, "{}", ended.stderr);
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
    trials(&[Fault::Kill, Fault::Stop], 4);
}

#[test]
#[ignore = "takes network namespaces, and root to make them: a step of `cargo xtask test`"]
fn answers_in_parts_outlast_cuts_at_random_moments() {
    trials(&[Fault::Cut], 2);
}

fn trials(kinds: &[Fault], default: u64) {
    let (count, seed) = (
        number_of_environment("QDL_FAULTS", default),
        number_of_environment("QDL_FAULT_SEED", 1),
    );
    let (mut struck, mut again, mut begun) = (0, 0, 0);
    for i in 0..count {
        let trial = Trial::nth(i, seed, kinds);
        let (place, ended) = trial.run(&model(SLOW));
        let hit = judge(&trial, &place, ended);
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
        stream: "first",
    };
    // The accelerators' content differs, so the frontend needs `model_files: any`.
    let nics = "nics: [{address: 127.0.0.1, connections: 2}]\n";
    let more = format!("{nics}stream: first\n{QUICK}model_files: any\n");
    let config = model(SLOW).frontend(&place, &[&a, &b], &more);
    // With verification, each answer of the second accelerator would be an error.
    let command = place.frontend(&config, "out", &["--verify", "none"]);
    let frontend = start_until(&trial, &model(SLOW), &place, command);
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
