//! Answers in parts while accelerators are killed, stopped and cut off, and single connections end
//! or bring what is no frame: from a seed, so that many of it falls between a sample's first token
//! and its last. And runs of any size without faults.
//!
//! `QDL_FAULTS` is how many of each test (the suite runs a few), `QDL_FAULT_SEED` the seed,
//! `QDL_SAMPLES` how large the runs without faults are.

mod common;

use std::{
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use common::{
    Ended, Place, Running, accelerator, accelerator_in, chance::number, free_ports, netns::Star,
    offline, sockets,
};
use serde_json::Value;

/// Quick to notice a loss, so that two hundred of them take minutes.
const QUICK: &str = "deadlines: {connect_ms: 4000, lost_ms: 2000, echo_interval_ms: 50, \
    echo_timeout_ms: 600, heartbeat_interval_ms: 200, heartbeat_timeout_ms: 1200}\n";

const MODEL: &str = "model: {name: llm, \
    inputs: [{name: prompt, dtype: i32, shape: [96], ragged: true}], \
    output: {name: tokens, dtype: i32, shape: [40], ragged: true}}\n";

/// A token in a millisecond: most of what is in flight has its first token and not its last.
const SLOW: &str = "engine: {kind: tokens, tokens: {sequences: 64, step_us: 1000, \
    min_tokens: 2, vocab: 1000}}\n";

/// As fast as it goes, and still several steps apart.
const FAST: &str = "engine: {kind: tokens, tokens: {sequences: 256, step_us: 50, \
    min_tokens: 2, vocab: 1000}}\n";

/// LoadGen measures tokens, with bounds that are far from what these machines need.
const MEASURED: [&str; 8] = [
    "--set",
    "use_token_latencies=1",
    "--set",
    "server_ttft_latency=600000000000",
    "--set",
    "server_tpot_latency=600000000000",
    "--set",
    "server_target_latency_percentile=0.9",
];

fn server<'a>(qps: &'a str, more: [&'a str; 2]) -> Vec<&'a str> {
    let server = ["--scenario", "server", "--target-qps", qps];
    [&server[..], &more, &MEASURED].concat()
}

/// Where an accelerator is to be found, and what proves who asks.
struct Address<'a> {
    control: &'a str,
    data: &'a str,
    token: &'a str,
}

fn accelerator_yaml(place: &Place, node: &str, engine: &str, at: &Address<'_>) -> PathBuf {
    let Address {
        control,
        data,
        token,
    } = at;
    let yaml = format!(
        "node: {node}\ncontrol: {{listen: \"{control}\"}}\n{token}{MODEL}{engine}\
         nics: [{{listen: \"{data}\"}}]\n"
    );
    place.write(&format!("{node}.yaml"), yaml)
}

/// A frontend that knows each token of each answer; `more` is YAML of its own.
fn frontend_yaml(place: &Place, engine: &str, controls: &[&str], more: &str) -> PathBuf {
    let accelerators = controls.iter().map(|c| format!("  - control: \"{c}\"\n"));
    let yaml = format!(
        "node: front\n{MODEL}{engine}verify: tokens\n\
         dataset: {{kind: tokens, count: 20000, min_len: 1, max_len: 96, vocab: 32000, seed: 7}}\n\
         accelerators:\n{}{more}",
        accelerators.collect::<String>()
    );
    place.write("frontend.yaml", yaml)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The accelerator's process is gone.
    Kill,
    /// It is there and says nothing.
    Stop,
    /// The path to it is.
    Cut,
    /// One of its connections ends.
    End,
    /// One of its connections brings what is no frame.
    Garble,
}

impl Fault {
    /// Of one connection: its accelerator stays.
    fn of_connection(self) -> bool {
        matches!(self, Fault::End | Fault::Garble)
    }
}

#[derive(Debug)]
struct Trial {
    fault: Fault,
    stream: &'static str,
    /// A second accelerator is left.
    second: bool,
    offline: bool,
    /// Milliseconds from the first sample to the fault.
    at: u64,
    connections: u64,
}

/// What came of a fault.
#[derive(Default)]
struct Struck {
    /// Connections were lost with samples on them, or all was.
    in_mid_run: bool,
    /// Samples sent again.
    again: u64,
    /// Of those, with `stream: first`, the ones whose first token had been reported.
    begun: u64,
}

impl Trial {
    fn nth(i: u64, seed: u64, kinds: &[Fault]) -> Self {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(1_000_003) + i);
        let turns = kinds.len() as u64;
        Trial {
            fault: kinds[(i % turns) as usize],
            stream: ["first", "all"][((i / turns + i % turns) % 2) as usize],
            second: i / turns % 3 != 1,
            offline: random.u64(..3) == 0,
            at: random.u64(..1200),
            connections: 1 + random.u64(..4),
        }
    }

    fn more(&self, address: &str) -> String {
        let (stream, connections) = (self.stream, self.connections);
        format!(
            "nics: [{{address: {address}, connections: {connections}}}]\nstream: {stream}\n{QUICK}"
        )
    }

    fn start(&self, place: &Place, mut command: Command) -> Running {
        command.args(match self.offline {
            // Enough samples to be at it when the fault comes.
            true => [&offline("10000")[..], &MEASURED].concat(),
            false => server("1000", ["--duration-s", "1.5"]),
        });
        let mut running = Running::start(place, "frontend", command);
        // From here on samples are LoadGen's; `faults.rs` strikes while connections warm up too.
        running.wait_until_it_says(" up in ");
        sleep(Duration::from_millis(self.at));
        running
    }

    fn on_loopback(&self) -> Struck {
        let place = Place::new();
        let [a, b, port, other] = free_ports();
        let controls = [a, b].map(|p| format!("127.0.0.1:{p}"));
        let data = [port, other].map(|p| format!("127.0.0.1:{p}"));
        let start = |node: &str, k: usize| {
            let at = Address {
                control: &controls[k],
                data: &data[k],
                token: "",
            };
            accelerator(&place, &accelerator_yaml(&place, node, SLOW, &at))
        };
        let victim = start("acc-a", 0);
        let _second = self.second.then(|| start("acc-b", 1));
        let known: Vec<_> = controls.iter().map(String::as_str).collect();
        let known = &known[..1 + usize::from(self.second)];
        let config = frontend_yaml(&place, SLOW, known, &self.more("127.0.0.1"));
        let frontend = self.start(&place, place.frontend(&config, "out", &[]));
        match self.fault {
            Fault::Kill => victim.signal(libc::SIGKILL),
            Fault::Stop => victim.signal(libc::SIGSTOP),
            _ => {
                let own = sockets::accepted(victim.id(), port).expect("its sockets");
                if let Some(stream) = own.get(self.at as usize % own.len().max(1)) {
                    match self.fault {
                        Fault::End => sockets::end(stream),
                        _ => sockets::garble(stream),
                    }
                }
            }
        }
        self.judge(&place, &frontend.end())
    }

    fn over_a_cable(&self) -> Struck {
        let place = Place::new();
        let star = Star::new();
        let token = place.write("token", "a token for this test alone");
        let token = format!("token_file: {}\n", token.display());
        let start = |node: &str, k: usize| {
            let at = Address {
                control: &format!("10.97.{k}.2:7400"),
                data: &format!("10.97.{k}.2:7410"),
                token: &token,
            };
            let config = accelerator_yaml(&place, node, SLOW, &at);
            accelerator_in(&star.leaves[k], &place, &config)
        };
        let _victim = start("acc-a", 0);
        let _second = self.second.then(|| start("acc-b", 1));
        let known = &["10.97.0.2:7400", "10.97.1.2:7400"][..1 + usize::from(self.second)];
        let more = self.more("10.97.0.1") + &token;
        let config = frontend_yaml(&place, SLOW, known, &more);
        let mut command = star.hub.command(Path::new(env!("CARGO_BIN_EXE_frontend")));
        command.arg("--config").arg(config);
        command.arg("--output").arg(place.path("out"));
        let frontend = self.start(&place, command);
        star.cut(0);
        self.judge(&place, &frontend.end())
    }

    fn judge(&self, place: &Place, ended: &Ended) -> Struck {
        let said = format!("{self:?}: {}{}", ended.stdout, ended.stderr);
        let s = place.summary("out");
        let alone = !self.second && !self.fault.of_connection();
        if alone && ended.code != Some(0) {
            return must_say_who(place, ended, &s, &said);
        }
        assert_eq!(ended.code, Some(0), "{said}");
        must_be_whole(&s, self.offline, &said);
        let again = of(&s["ledger"], "redispatched");
        let begun = of(&s["tokens"], "parts_taken") - of(&s["tokens"], "parts_before_last");
        Struck {
            in_mid_run: of(&s["ledger"], "lost_connections") > 0,
            again,
            // With `stream: first` a lost answer had one part at most.
            begun: if self.stream == "first" { begun } else { 0 },
        }
    }
}

fn of(what: &Value, key: &str) -> u64 {
    let number = what[key].as_u64();
    number.unwrap_or_else(|| panic!("no number {key} in {what:#}"))
}

/// Every sample once, each with its own tokens and their number; each first token once.
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

/// One that lost its last accelerator says which; what it was told until then was right, and what
/// it was not told is counted.
fn must_say_who(place: &Place, ended: &Ended, s: &Value, said: &str) -> Struck {
    assert_eq!(ended.code, Some(3), "{said}");
    let lines = ended.stderr.lines();
    let errors: Vec<_> = lines.filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    assert!(errors[0].contains("acc-a"), "{said}");
    assert!(place.path("out").join("INVALID").is_file(), "{said}");
    let ledger = &s["ledger"];
    let (answered, emptied) = (of(ledger, "answered"), of(ledger, "emptied"));
    assert_eq!(of(ledger, "issued"), answered + emptied, "{said}");
    let tokens = &s["tokens"];
    assert_eq!(of(tokens, "contradicted"), 0, "{said}");
    if let Some(first) = tokens["first_tokens"].as_u64() {
        assert!((answered..=answered + emptied).contains(&first), "{said}");
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
#[ignore = "takes network namespaces and another process's sockets, and root for both: a step of \
            `cargo xtask test`"]
fn answers_in_parts_outlast_cuts_at_random_moments() {
    trials(&[Fault::Cut, Fault::End, Fault::Garble], 3);
}

/// Each kind in turn, and each kind of stream; everything else at random.
fn trials(kinds: &[Fault], default: u64) {
    let (count, seed) = (number("QDL_FAULTS", default), number("QDL_FAULT_SEED", 1));
    let (mut struck, mut again, mut begun) = (0, 0, 0);
    for i in 0..count {
        let trial = Trial::nth(i, seed, kinds);
        let hit = match trial.fault {
            Fault::Cut => trial.over_a_cable(),
            _ => trial.on_loopback(),
        };
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

/// Two accelerators, three connections to each, LoadGen's clock on the first token of each.
#[test]
fn each_token_number_and_first_one_is_right_in_runs_of_any_size() {
    let samples = number("QDL_SAMPLES", 4_000);
    for stream in ["first", "all"] {
        let place = Place::new();
        let [a, b] = free_ports().map(|p| format!("127.0.0.1:{p}"));
        let _accelerators = [("acc-a", &a), ("acc-b", &b)].map(|(node, control)| {
            let at = Address {
                control,
                data: "127.0.0.1:0",
                token: "",
            };
            accelerator(&place, &accelerator_yaml(&place, node, FAST, &at))
        });
        let more = format!("nics: [{{address: 127.0.0.1, connections: 3}}]\nstream: {stream}\n");
        let config = frontend_yaml(&place, FAST, &[&a, &b], &more);
        let count = samples.to_string();
        let mut arguments = server("4000", ["--samples", &count]);
        arguments.extend(["--set", "min_duration=0"]);
        let command = place.frontend(&config, "out", &arguments);
        let patience = Duration::from_millis(60_000 + samples);
        let ended = Running::start(&place, "frontend", command).end_within(patience);
        let said = format!("{stream}: {}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.code, Some(0), "{said}");
        let s = place.summary("out");
        must_be_whole(&s, false, &said);
        assert_eq!(s["connections"].as_array().map(Vec::len), Some(6), "{said}");
        assert!(of(&s["ledger"], "issued") >= samples, "{said}");
        // Each answer's parts are known: two, or as many as it has tokens.
        let tokens = &s["tokens"];
        assert!(of(tokens, "parts_taken") > 0, "{said}");
        assert_eq!(tokens["parts_taken"], tokens["parts_before_last"], "{said}");
        println!(
            "stream {stream}: {} samples, {} tokens, {} parts on average",
            s["samples"], tokens["tokens"], tokens["parts"]["mean"]
        );
    }
}

/// Two accelerators that answer the same prompt differently, as two builds of a server may: what
/// one has begun and the other begins anew is seen, named, and not let pass.
#[test]
fn a_first_token_other_than_the_one_reported_is_named() {
    let place = Place::new();
    let [a, b] = free_ports().map(|p| format!("127.0.0.1:{p}"));
    let other = SLOW.replace("vocab: 1000", "vocab: 900");
    let start = |node: &str, control: &str, engine: &str| {
        let at = Address {
            control,
            data: "127.0.0.1:0",
            token: "",
        };
        accelerator(&place, &accelerator_yaml(&place, node, engine, &at))
    };
    let victim = start("acc-a", &a, SLOW);
    let _second = start("acc-b", &b, &other);
    let trial = Trial {
        fault: Fault::Kill,
        stream: "first",
        second: true,
        offline: false,
        at: 500,
        connections: 2,
    };
    // They say so themselves, and are not taken without this.
    let more = trial.more("127.0.0.1") + "model_files: any\n";
    let config = frontend_yaml(&place, SLOW, &[&a, &b], &more);
    // Else each answer of the second would be a fault of its own.
    let command = place.frontend(&config, "out", &["--verify", "none"]);
    let frontend = trial.start(&place, command);
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
    for words in ["was sent again, and began with token", "was reported"] {
        assert!(reason.contains(words), "{reason}");
    }
    assert!(place.path("out").join("INVALID").is_file(), "{said}");
}
