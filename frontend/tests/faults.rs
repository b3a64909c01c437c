//! Accelerators killed, stopped and cut off at random times of a real run; the times come from a
//! seed.
//!
//! `QDL_FAULTS` sets the number of trials per test, `QDL_FAULT_SEED` the seed.

mod common;

use common::{
    ProgramEnd, TestFolder,
    faults::{Fault, Trial, Workload, must_say_who},
    number_of_environment,
};

fn digests() -> Workload {
    let engine = "engine: {kind: digest, max_batch: 16, delay_us: 200}\n";
    Workload {
        there: format!("model: {{name: digest, max_input_bytes: 20000}}\n{engine}"),
        here: format!(
            "model: {{name: digest, inputs: [{{name: input, dtype: u8, shape: [20000], \
             ragged: true}}], output: {{name: output, dtype: u8, shape: [8]}}}}\n{engine}\
             verify: digest\ndataset: {{kind: random, count: 500, seed: 3}}\n"
        ),
        server: "--scenario server --target-qps 3000 --duration-s 1.5 --set target_latency=60000",
        offline: "60000",
        always: "",
        // LoadGen has opened its log; connections may still be warming up.
        begun: |place, frontend| frontend.wait_until_loadgen_runs(place, "out"),
    }
}

/// Checks that the run ended with one answer for every sample. If the fault came during the
/// warm-up, the run must name the connection that failed.
fn must_be_whole(place: &TestFolder, ended: ProgramEnd, trial: &Trial) -> bool {
    let s = place.summary("out");
    let ledger = &s["ledger"];
    if ended.stderr.contains("failed its warm-up") {
        let ended = ended.with_code(3);
        assert!(
            ended.error().contains("connection acc-a/"),
            "{}",
            ended.stderr
        );
        assert_eq!(ledger["answered"], 0, "{trial:?}");
        return false;
    }
    let ended = ended.with_code(0);
    assert_eq!(ledger["emptied"], 0, "{trial:?}: {s}");
    assert_eq!(ledger["issued"], ledger["answered"], "{trial:?}: {s}");
    assert_eq!(
        s["mismatches"].as_array().map_or(0, Vec::len),
        0,
        "{trial:?}: {s}"
    );
    // The path is loopback, or a cable between two network namespaces.
    let notes = s["fabric_notes"].to_string();
    assert!(notes.contains("on this very machine"), "{trial:?}: {notes}");
    assert_eq!(
        notes.contains("loopback"),
        trial.fault != Fault::Cut,
        "{trial:?}"
    );
    // Each loss has one line, with the accelerator and the time.
    let losses = s["losses"].as_array().map_or(0, Vec::len);
    let told = ended.stderr.lines().filter(|l| l.contains(" lost "));
    assert!(told.count() <= losses, "{trial:?}: {}", ended.stderr);
    assert!(
        !ended.stderr.contains("was expected"),
        "{trial:?}: {}",
        ended.stderr
    );
    ledger["lost_connections"].as_u64() > Some(0)
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

/// Runs trials: kinds of fault take turns, and all else is random.
fn trials(kinds: &[Fault], default: u64) {
    let (count, seed) = (
        number_of_environment("QDL_FAULTS", default),
        number_of_environment("QDL_FAULT_SEED", 1),
    );
    let mut struck = 0;
    for i in 0..count {
        let trial = Trial::nth(i, seed, kinds);
        println!("fault {i} of seed {seed}: {trial:?}");
        let (place, ended) = trial.run(&digests());
        let hit = match trial.takes_all() {
            false => must_be_whole(&place, ended, &trial),
            // The run may have ended before the fault.
            true if ended.code == Some(0) => false,
            true => {
                must_say_who(&place, ended);
                true
            }
        };
        println!("in mid-run: {hit}");
        struck += u64::from(hit);
    }
    println!("{count} faults, {struck} of them in mid-run");
    assert!(struck * 2 >= count, "too few came in time: {struck}");
}
