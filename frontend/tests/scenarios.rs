//! Every scenario and mode of LoadGen over the network. LoadGen judges each run, and the frontend
//! compares each response with its sample.

mod common;

use common::{TwoOfDigests, words};

/// The bound is far from what these machines need: no test is about time.
const SERVER: &str =
    "--scenario server --target-qps 3000 --duration-s 0.6 --set target_latency=2000";

/// Each run is VALID, with the given number of samples per query.
#[test]
fn every_scenario_is_valid_and_every_answer_its_own_samples() {
    let rig = TwoOfDigests::start();
    let several = format!("{SERVER} --set server_num_issue_query_threads=3");
    let coalesced =
        format!("{SERVER} --set server_num_issue_query_threads=2 --set coalesce_queries=1");
    for (arguments, query) in [
        (
            "--scenario single-stream --target-qps 100000 --duration-s 0.6",
            1,
        ),
        // Enough queries for early stopping, whatever the duration.
        (
            "--scenario multi-stream --target-qps 30000 --duration-s 0.6 \
             --set samples_per_query=13 --set min_query_count=700",
            13,
        ),
        (SERVER, 1),
        (&several, 1),
        (&coalesced, 1),
        (
            "--scenario offline --set min_duration=0 --samples 20000",
            20_000,
        ),
    ] {
        let ended = rig.place.run(&rig.config, "out", &words(arguments));
        let ended = ended.with_code(0);
        let s = rig.place.summary("out");
        assert_eq!(s["valid"], true, "{arguments}: {}", ended.stdout);
        assert_eq!(s["mismatches"].as_array().map(Vec::len), Some(0));
        let samples = s["samples"].as_u64().expect("samples");
        assert!(samples.is_multiple_of(query), "{arguments}: {samples}");
    }
}

#[test]
fn the_accuracy_mode_of_every_scenario_sends_each_sample_once() {
    let rig = TwoOfDigests::start();
    let mut first = None;
    for scenario in ["single-stream", "multi-stream", "server", "offline"] {
        let mut arguments = vec!["--scenario", scenario, "--mode", "accuracy"];
        if scenario == "server" {
            arguments.extend(["--target-qps", "5000"]);
        }
        rig.place
            .run(&rig.config, scenario, &arguments)
            .with_code(0);
        let mut answers = rig.place.answers(scenario);
        // MultiStream fills its last query with repeated samples.
        answers.dedup();
        assert_eq!(answers.len(), 500, "{scenario}");
        assert_eq!(first.get_or_insert(answers.clone()), &answers, "{scenario}");
    }
}
