//! Accelerators killed, stopped and cut off at random moments of a real run, from a seed.
//!
//! `QDL_FAULTS` is how many of each test (the suite runs a few), `QDL_FAULT_SEED` the seed.

mod common;

use std::{path::Path, process::Command, thread::sleep, time::Duration};

use common::{
    Place, Running, accelerator, accelerator_in, chance::number, free_ports, netns::Star, offline,
    words,
};

/// Quick to notice a loss, so that two hundred of them take minutes.
const QUICK: &str = "deadlines: {connect_ms: 4000, lost_ms: 2000, echo_interval_ms: 50, echo_timeout_ms: 600, \
    heartbeat_interval_ms: 200, heartbeat_timeout_ms: 1200}\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    Stop,
    Cut,
}

struct Trial {
    fault: Fault,
    /// A second accelerator is left.
    second: bool,
    offline: bool,
    /// Milliseconds from the first sample to the fault.
    at: u64,
    connections: u64,
}

fn arguments(trial: &Trial) -> Vec<&'static str> {
    if trial.offline {
        // Enough samples to be at it when the fault comes.
        offline("60000").to_vec()
    } else {
        words("--scenario server --target-qps 3000 --duration-s 1.5 --set target_latency=60000")
    }
}

fn start(place: &Place, mut command: Command, trial: &Trial) -> Running {
    command.args(arguments(trial));
    let mut running = Running::start(place, "frontend", command);
    let log = place.path("out").join("mlperf_log_detail.txt");
    running.wait_until("test", || {
        std::fs::metadata(&log).is_ok_and(|m| m.len() > 0)
    });
    running
}

/// The frontend's own words on a run that must have come to its end, every sample once.
///
/// One whose connections were still being warmed up must
/// have stopped with the name of the one that failed.
fn must_be_whole(place: &Place, frontend: Running, what: &str) -> bool {
    let ended = frontend.end();
    if ended.stderr.contains("failed its warm-up") {
        assert_eq!(ended.code, Some(3), "{what}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("error: connection acc-a/"),
            "{what}: {}",
            ended.stderr
        );
        assert_eq!(place.summary("out")["ledger"]["answered"], 0, "{what}");
        return false;
    }
    assert_eq!(
        ended.code,
        Some(0),
        "{what}: {}{}",
        ended.stdout,
        ended.stderr
    );
    let s = place.summary("out");
    let ledger = &s["ledger"];
    assert_eq!(ledger["emptied"], 0, "{what}: {s}");
    assert_eq!(ledger["issued"], ledger["answered"], "{what}: {s}");
    assert_eq!(
        s["mismatches"].as_array().map(Vec::len).unwrap_or(0),
        0,
        "{what}: {s}"
    );
    // Whatever lies between them: loopback, or a cable between two network namespaces.
    let notes = s["fabric_notes"].to_string();
    assert!(notes.contains("on this very machine"), "{what}: {notes}");
    assert_eq!(notes.contains("loopback"), !what.contains("Cut"), "{what}");
    // One line for each loss, who and when, and no more of it.
    let losses = s["losses"].as_array().map_or(0, Vec::len);
    let told = ended.stderr.lines().filter(|l| l.contains(" lost "));
    assert!(told.count() <= losses, "{what}: {}", ended.stderr);
    assert!(
        !ended.stderr.contains("was expected"),
        "{what}: {}",
        ended.stderr
    );
    ledger["lost_connections"].as_u64() > Some(0)
}

/// One that lost its last accelerator says which, and ends with code 3 (or had ended well before).
fn must_say_who(place: &Place, frontend: Running, what: &str) -> bool {
    let ended = frontend.end();
    if ended.code == Some(0) {
        return false;
    }
    assert_eq!(
        ended.code,
        Some(3),
        "{what}: {}{}",
        ended.stdout,
        ended.stderr
    );
    let errors: Vec<_> = ended
        .stderr
        .lines()
        .filter(|l| l.starts_with("error: "))
        .collect();
    assert_eq!(errors.len(), 1, "{what}: {}", ended.stderr);
    assert!(errors[0].contains("acc-a"), "{what}: {}", errors[0]);
    assert!(place.path("out").join("INVALID").is_file(), "{what}");
    true
}

fn judge(trial: &Trial, place: &Place, frontend: Running, what: &str) -> bool {
    if trial.second {
        must_be_whole(place, frontend, what)
    } else {
        must_say_who(place, frontend, what)
    }
}

fn on_loopback(trial: &Trial, what: &str) -> bool {
    let place = Place::new();
    let [a, b] = free_ports();
    let slow = "engine: {kind: digest, max_batch: 16, delay_us: 200}\n";
    let victim = accelerator(&place, &place.digest_accelerator("acc-a", a, slow));
    let _second = trial
        .second
        .then(|| accelerator(&place, &place.digest_accelerator("acc-b", b, slow)));
    let controls: &[u16] = if trial.second { &[a, b] } else { &[a] };
    let nics = format!(
        "nics: [{{address: 127.0.0.1, connections: {}}}]\n{QUICK}",
        trial.connections
    );
    let config = place.digest_frontend(controls, &nics);
    let frontend = start(&place, place.frontend(&config, "out", &[]), trial);
    sleep(Duration::from_millis(trial.at));
    victim.signal(if trial.fault == Fault::Kill {
        libc::SIGKILL
    } else {
        libc::SIGSTOP
    });
    judge(trial, &place, frontend, what)
}

fn over_a_cable(trial: &Trial, what: &str) -> bool {
    let place = Place::new();
    let star = Star::new();
    let token = place.write("token", "a token for this test alone");
    let leaf = |k: usize, node: &str| {
        let yaml = format!(
            "node: {node}\ncontrol: {{listen: \"10.97.{k}.2:7400\"}}\ntoken_file: {}\n\
             model: {{name: digest, max_input_bytes: 20000}}\nnics: [{{listen: \"10.97.{k}.2:7410\"}}]\n\
             engine: {{kind: digest, max_batch: 16, delay_us: 200}}\n",
            token.display()
        );
        place.write(&format!("{node}.yaml"), yaml)
    };
    let victim = accelerator_in(&star.leaves[0], &place, &leaf(0, "acc-a"));
    let second = trial
        .second
        .then(|| accelerator_in(&star.leaves[1], &place, &leaf(1, "acc-b")));
    let mut yaml = format!(
        "node: front\ntoken_file: {}\nverify: digest\ndataset: {{kind: random, count: 500, seed: 3}}\n\
         model: {{name: digest, inputs: [{{name: input, dtype: u8, shape: [20000], ragged: true}}], \
         output: {{name: output, dtype: u8, shape: [8]}}}}\n\
         nics: [{{address: 10.97.0.1, connections: {}}}]\n{QUICK}accelerators:\n  - control: 10.97.0.2:7400\n",
        token.display(),
        trial.connections
    );
    if trial.second {
        yaml += "  - control: 10.97.1.2:7400\n";
    }
    let config = place.write("frontend.yaml", yaml);
    let mut command = star.hub.command(Path::new(env!("CARGO_BIN_EXE_frontend")));
    command
        .arg("--config")
        .arg(config)
        .arg("--output")
        .arg(place.path("out"));
    let frontend = start(&place, command, trial);
    sleep(Duration::from_millis(trial.at));
    star.cut(0);
    let struck = judge(trial, &place, frontend, what);
    drop((victim, second));
    struck
}

#[test]
fn faults_at_random_moments() {
    trials(&[Fault::Kill, Fault::Stop], 4);
}

#[test]
#[ignore = "takes network namespaces, and root to make them: a step of `cargo xtask test`"]
fn cuts_at_random_moments() {
    trials(&[Fault::Cut], 2);
}

/// Each kind in turn, everything else at random.
fn trials(kinds: &[Fault], default: u64) {
    let (count, seed) = (number("QDL_FAULTS", default), number("QDL_FAULT_SEED", 1));
    let turns = kinds.len() as u64;
    let mut struck = [0u64; 2];
    for i in 0..count {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(1_000_003) + i);
        let fault = kinds[(i % turns) as usize];
        let trial = Trial {
            fault,
            second: (i / turns).is_multiple_of(2),
            offline: random.u64(..3) == 0,
            at: random.u64(..1200),
            connections: 1 + random.u64(..4),
        };
        let what = format!(
            "fault {i} of seed {seed}: {fault:?} after {} ms, {} connections, second accelerator {}, {}",
            trial.at,
            trial.connections,
            trial.second,
            if trial.offline { "Offline" } else { "Server" }
        );
        let hit = if fault == Fault::Cut {
            over_a_cable(&trial, &what)
        } else {
            on_loopback(&trial, &what)
        };
        println!(
            "{what}: {}",
            if hit {
                "struck"
            } else {
                "the run was over already"
            }
        );
        struck[usize::from(hit)] += 1;
    }
    println!("{count} faults, {} of them in mid-run", struck[1]);
    assert!(struck[1] * 2 >= count, "too few came in time: {struck:?}");
}
