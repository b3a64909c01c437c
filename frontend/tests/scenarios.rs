//! All of LoadGen over the wire: every scenario and mode,
//! judged by LoadGen, every response compared with its sample.

mod common;

use common::{Ended, Place, Running, accelerator, free_ports, offline, run, words};
use serde_json::Value;

/// Two accelerators of digests and the frontend's configuration.
struct Rig {
    place: Place,
    config: std::path::PathBuf,
    _accelerators: [Running; 2],
}

impl Rig {
    fn new() -> Self {
        Self::with("")
    }

    /// `more` is YAML of the accelerators.
    fn with(more: &str) -> Self {
        let place = Place::new();
        let [a, b] = free_ports();
        let accelerators = [("acc-a", a), ("acc-b", b)]
            .map(|(node, port)| accelerator(&place, &place.digest_accelerator(node, port, more)));
        let config = place.digest_frontend(&[a, b], "");
        Rig {
            place,
            config,
            _accelerators: accelerators,
        }
    }

    fn run(&self, out: &str, arguments: &[&str]) -> Ended {
        run(
            &self.place,
            self.place.frontend(&self.config, out, arguments),
        )
    }

    /// A run that LoadGen must call valid, and whose responses must all have been right.
    fn valid(&self, out: &str, arguments: &[&str]) -> Value {
        let ended = self.run(out, arguments);
        assert_eq!(
            ended.code,
            Some(0),
            "{arguments:?}: {}{}",
            ended.stdout,
            ended.stderr
        );
        let summary = self.place.summary(out);
        assert_eq!(summary["valid"], true, "{summary:#}");
        assert_eq!(summary["mismatches"].as_array().map(Vec::len), Some(0));
        summary
    }

    /// What LoadGen's summary says of `key`.
    fn said(&self, out: &str, key: &str) -> f64 {
        let path = self.place.path(out).join("mlperf_log_summary.txt");
        let text = std::fs::read_to_string(path).expect("a summary");
        let line = text.lines().find(|l| l.starts_with(key));
        let number = line.and_then(|l| l.rsplit(':').next()?.trim().parse().ok());
        number.unwrap_or_else(|| panic!("no number for {key} in {text}"))
    }
}

/// What keeps a run short. The bound is far from what these machines need: no test is about time.
const SHORT: [&str; 4] = ["--duration-s", "0.6", "--set", "target_latency=2000"];

fn short<'a>(scenario: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["--scenario", scenario];
    all.extend(SHORT);
    all.extend(more);
    all
}

#[test]
fn single_stream_sends_one_sample_at_a_time() {
    let rig = Rig::new();
    let arguments = words("--scenario single-stream --target-qps 100000 --duration-s 0.6");
    // LoadGen makes its queries beforehand, as many as
    // the target would need: it must not run out of them.
    let s = rig.valid("out", &arguments);
    assert_eq!(s["scenario"], "SingleStream");
    // A large sample is posted by the NIC's thread, and waits for it.
    assert!(s["backlog_max"].as_u64() <= Some(1));
    assert!(rig.said("out", "90.0th percentile latency (ns)") > 0.0);
}

#[test]
fn multi_stream_sends_queries_of_several_samples() {
    let rig = Rig::new();
    let arguments = [
        "--scenario",
        "multi-stream",
        "--target-qps",
        "30000",
        "--duration-s",
        "0.6",
        "--set",
        "samples_per_query=13",
        // As many as early stopping wants, however long they take on a busy machine.
        "--set",
        "min_query_count=700",
    ];
    let s = rig.valid("out", &arguments);
    let samples = s["samples"].as_u64().expect("samples");
    assert!(
        samples >= 13 * 100 && samples.is_multiple_of(13),
        "{samples} samples"
    );
}

#[test]
fn server_with_several_issue_threads_and_coalescing() {
    let rig = Rig::new();
    let plain = short("server", &["--target-qps", "3000"]);
    rig.valid("plain", &plain);
    let threads = short(
        "server",
        &[
            "--target-qps",
            "3000",
            "--set",
            "server_num_issue_query_threads=3",
        ],
    );
    rig.valid("threads", &threads);
    let both = short(
        "server",
        &words(
            "--target-qps 3000 --set server_num_issue_query_threads=2 --set \
             coalesce_queries=1",
        ),
    );
    rig.valid("both", &both);
}

#[test]
fn offline_is_one_query() {
    let rig = Rig::new();
    let arguments = offline("20000");
    let s = rig.valid("out", &arguments);
    assert_eq!(s["samples"], 20_000);
}

#[test]
fn the_accuracy_mode_of_every_scenario_sends_each_sample_once() {
    let rig = Rig::new();
    let mut first = None;
    for scenario in ["single-stream", "multi-stream", "server", "offline"] {
        let mut arguments = vec!["--scenario", scenario, "--mode", "accuracy"];
        if scenario == "server" {
            arguments.extend(["--target-qps", "5000"]);
        }
        let ended = rig.run(scenario, &arguments);
        assert_eq!(ended.code, Some(0), "{scenario}: {}", ended.stderr);
        let mut answers = rig.place.answers(scenario);
        // MultiStream fills its last query up with samples that were there before.
        answers.dedup();
        assert_eq!(answers.len(), 500, "{scenario}");
        assert_eq!(first.get_or_insert(answers.clone()), &answers, "{scenario}");
    }
}

#[test]
fn find_peak_ends_with_a_rate_that_the_engines_can_do() {
    // Two engines that do nothing for 5 ms with each sample:
    // 400/s are completed at most, whatever the machine.
    let rig = Rig::with("engine: {kind: digest, max_batch: 1, delay_us: 5000}\n");
    let arguments = words(
        "--scenario server --mode find-peak --target-qps 100 --duration-s 0.2 --set \
         target_latency=200 --set target_latency_percentile=0.5 --set \
         server_find_peak_qps_decimals_of_precision=0",
    );
    let ended = rig.run("out", &arguments);
    // LoadGen looks for a rate within the bound on latency alone; whether its last run was long
    // enough to be called valid is another matter.
    let code = ended.code.expect("an exit code");
    assert!(code <= 1, "{}{}", ended.stdout, ended.stderr);
    let log = rig.place.path("out").join("mlperf_log_detail.txt");
    let log = std::fs::read_to_string(log).expect("a log");
    assert!(log.contains("Found peak performance field"), "{log}");
    let s = rig.place.summary("out");
    assert_eq!(s["mismatches"].as_array().map(Vec::len), Some(0));
    let rate = rig.said("out", "Completed samples per second");
    assert!(rate > 0.0 && rate <= 450.0, "{rate}");
}
