//! Frontend and accelerators as processes, over the network.

use std::{path::Path, process::Command, thread::sleep, time::Duration};

use crate::common::{
    Running, TestFolder, accelerator, accelerator_by, accelerator_program, assert_has,
    faults::QUICK, fetched, free_ports, offline, one_of_digests, two_of_digests,
};

/// Arguments of a Server run of this many seconds, with a latency bound that no run exceeds.
fn server(seconds: &str) -> [&str; 8] {
    [
        "--scenario",
        "server",
        "--target-qps",
        "2000",
        "--duration-s",
        seconds,
        "--set",
        "target_latency=10000",
    ]
}

/// Starts a frontend, and waits until its connections are warm and samples are in flight.
fn start(place: &TestFolder, config: &Path, out: &str, arguments: &[&str]) -> Running {
    let mut running = Running::start(place, "frontend", place.frontend(config, out, arguments));
    running.wait_until_it_says(" warmed ");
    sleep(Duration::from_millis(300));
    running
}

fn unbroken(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_hundred_thousand_digests_over_six_connections() {
    let place = TestFolder::new();
    // On a busy machine the warm-up may take longer than a second.
    let more = "qsl: staged\nwarm_up: {budget_ms: 20000}\n";
    let (config, _running) = two_of_digests(&place, "", more);
    let arguments = offline("100000");
    place.run(&config, "out", &arguments).with_code(0);
    let s = place.summary("out");
    assert_eq!(s["samples"], 100_000);
    assert_eq!(s["valid"], true);
    assert_eq!(s["connections"].as_array().map(Vec::len), Some(6));
    assert_eq!(s["mismatches"].as_array().map(Vec::len), Some(0));
    let notes = s["fabric_notes"].as_array().expect("a list");
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert_eq!(notes[0], "loopback (not a permitted fabric)");
    let here = notes[1].as_str().expect("words");
    assert!(
        here.starts_with("acc-a and acc-b are on this very machine"),
        "{here}"
    );
    // Each program says what it is.
    let facts = |of: &serde_json::Value| (of["boot"].clone(), of["program"].clone());
    let (boot, program) = facts(&s["facts"]);
    let (there, other) = facts(&s["accelerators"][1]["facts"]);
    assert_eq!((boot.is_string(), &boot), (true, &there));
    assert_eq!(facts(&s["accelerators"][0]["facts"]).1, other);
    assert!(program.is_string() && program != other);
    let name = s["name"].as_str().expect("a name");
    assert_has(name, &["Network SUT", "acc-a", "acc-b"]);
    assert!(s["name_round_trip_us"].as_f64() > Some(0.0));
    assert_eq!(s["staged_copies"], 100_000);
    let connections = s["connections"].as_array().expect("a list");
    for c in connections {
        assert!(c["warmed"].as_u64() > Some(1), "{c}");
        assert!(c["cold_us"].is_u64() && c["warm_us"].is_u64(), "{c}");
    }
    let warmed: u64 = connections
        .iter()
        .filter_map(|c| c["warmed"].as_u64())
        .sum();
    assert_eq!(s["warm_up"]["samples"], warmed);
    let arrived = s["accelerators"].as_array().expect("a list").iter();
    let arrived: u64 = arrived.filter_map(|a| a["arrived"].as_u64()).sum();
    assert_eq!(arrived, 100_000 + warmed);
}

#[test]
fn a_connection_that_does_not_answer_its_warm_up_stops_the_run_with_its_name() {
    let place = TestFolder::new();
    let slow = "engine: {kind: digest, delay_us: 900000}\n";
    let hasty = "warm_up: {deadline_ms: 100}\n";
    let (config, _running) = one_of_digests(&place, slow, hasty);
    let arguments = offline("10");
    let ended = place.run(&config, "impatient", &arguments).with_code(3);
    let error = ended.error();
    assert_has(
        error,
        &[
            "connection acc-a/0 (nics[0], accelerator at 127.0.0.1:",
            "failed its warm-up: no answer within 100ms, nor from any other connection, and no \
             accelerator has made a token or run a batch (warm_up.deadline_ms)",
        ],
    );
    let s = place.summary("impatient");
    assert_eq!(s["mismatches"].as_array().map(Vec::len), Some(0));
    // The next run has no warm-up.
    let text = std::fs::read_to_string(&config).expect("written");
    std::fs::write(&config, text.replace(hasty, "warm_up: {budget_ms: 0}\n")).expect("written");
    place.run(&config, "cold", &arguments).with_code(0);
    let s = place.summary("cold");
    assert_eq!(s["samples"], 10);
    assert_eq!(s["warm_up"], serde_json::Value::Null);
}

#[test]
fn one_of_two_accelerators_is_killed_and_the_run_goes_on() {
    let place = TestFolder::new();
    // The accelerators report their progress every 20 ms.
    let often = "deadlines: {heartbeat_interval_ms: 20}\n";
    let (config, [victim, _other]) = two_of_digests(&place, often, QUICK);
    let frontend = start(&place, &config, "out", &server("2"));
    victim.signal(libc::SIGKILL);
    let ended = frontend.end().with_code(0);
    // One line names the accelerator, the time, the cause and the number of samples.
    let lines = ended.stderr.lines();
    let said: Vec<_> = lines.filter(|l| l.contains("acc-a")).collect();
    let [loss] = said[..] else {
        panic!("{}", ended.stderr)
    };
    assert_has(
        loss,
        &[
            "acc-a lost 0.",
            " s into the run: its program ended or was killed; see its log; ",
            " in flight",
        ],
    );
    let s = place.summary("out");
    let at = s["losses"][0]["at_s"].as_f64().expect("a time");
    let with = format!("with one accelerator lost at {at:.1} s");
    assert!(unbroken(&ended.stdout).contains(&with), "{}", ended.stdout);
    assert_eq!(s["exit"]["reason"], format!("valid, {with}"));
    assert!(
        unbroken(&ended.stdout).contains(loss),
        "{loss}\n{}",
        ended.stdout
    );
    // The summary holds the lost accelerator's last report.
    let lost = &s["accelerators"][0];
    assert!(lost["samples"].is_null(), "{lost}");
    let last = &lost["lost_sessions"][0];
    assert!(last["samples"].as_u64() > Some(0), "{lost}");
    assert!(last["batches"].as_u64() > Some(0), "{lost}");
    assert_eq!(s["valid"], true);
    assert_eq!(s["ledger"]["emptied"], 0);
    assert_eq!(s["ledger"]["lost_connections"], 3);
    // The timeline has the loss with its time, and no side of the lost accelerator.
    let t = place.timeline("out");
    let names: Vec<_> = t.nodes.iter().map(|n| n.node.as_str()).collect();
    assert_eq!(names, ["front", "acc-b"]);
    let lost = t.events.iter().find(|e| e.kind == "lost").expect("a loss");
    assert!(
        lost.text.starts_with("acc-a") && lost.at_s > 0.0,
        "{lost:?}"
    );
    assert!(t.events.iter().all(|e| e.kind != "back"));
}

/// A signal makes a run interrupted, without any loss in the summary. The accelerator serves the
/// next frontend, also after one that was killed.
#[test]
fn an_interrupted_frontend_leaves_the_accelerator_ready_and_reports_no_loss() {
    let place = TestFolder::new();
    let slow = "engine: {kind: digest, delay_us: 9000}";
    let (config, acc) = one_of_digests(&place, slow, QUICK);
    let signals = [
        (libc::SIGINT, "SIGINT"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGHUP, "SIGHUP"),
    ];
    for (signal, name) in signals {
        let frontend = start(&place, &config, name, &server("50"));
        // `timeout` sends the signal twice: to its child and to the process group.
        frontend.signal(signal);
        frontend.signal(signal);
        let ended = frontend.end().with_code(130);
        assert_has(&ended.stderr, &[&format!("interrupted by {name}")]);
        assert!(place.path(name).join("INVALID").is_file());
        let s = place.summary(name);
        assert_eq!(s["losses"].as_array().map(Vec::len), Some(0), "{s}");
        assert!(s["accelerators"][0]["lost"].is_null(), "{s}");
        for words in ["accelerator lost", "lost when", "acc-a lost"] {
            assert!(!ended.stdout.contains(words), "{}", ended.stdout);
        }
    }
    let frontend = start(&place, &config, "killed", &server("50"));
    frontend.signal(libc::SIGKILL);
    assert_eq!(frontend.end().code, None);
    // The accelerator may need some time to detect the loss.
    sleep(Duration::from_millis(300));
    place.run(&config, "next", &offline("20")).with_code(0);
    acc.signal(libc::SIGTERM);
    assert_eq!(acc.end().code, Some(0), "it has served all of them");
}

#[test]
fn an_accelerator_compares_its_counts_when_its_frontend_has_left() {
    let place = TestFolder::new();
    let [port] = free_ports();
    let config = place.digest_accelerator("acc-a", port, "");
    let mut once = Command::new(accelerator_program());
    once.arg("--once");
    let acc = accelerator_by(&place, &config, once);
    let config = place.digest_frontend(&[port], "");
    place.run(&config, "out", &offline("20000")).with_code(0);
    let lines = acc.remaining_lines();
    let said = acc.end();
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let served = lines.join("\n");
    assert_has(&served, &["reconciled   received = arrived"]);
    assert!(!served.contains("lost"), "{served}");
}

fn of_digits(place: &TestFolder, node: &str, port: u16, file: &Path) -> Running {
    let file = file.display();
    let body = format!("model: {{name: digits, file: {file}}}\nengine: {{kind: onnx}}");
    accelerator(place, &place.accelerator_of(node, port, &body))
}

#[test]
fn accelerators_with_another_model_of_the_same_name_and_shapes_are_refused() {
    let digits = fetched("models/digits.onnx");
    let place = TestFolder::new();
    let original = std::fs::read(&digits).expect("a model");
    let copy = place.write("copy.onnx", &original);
    // The same graph with an additional `doc_string`, so the file's hash differs.
    let other = place.write("other.onnx", [&original[..], &[0x32, 1, b'x']].concat());
    let [a, b, c] = free_ports();
    let _a = of_digits(&place, "acc-a", a, &digits);
    let _b = of_digits(&place, "acc-b", b, &copy);
    let _c = of_digits(&place, "acc-c", c, &other);
    let front = |ports: &[u16], more: &str| {
        let yaml = format!(
            "model: {{name: digits, inputs: [{{name: pixels, dtype: u8, shape: [64]}}], \
             output: {{name: class, dtype: i64, shape: [1]}}}}\n\
             dataset: {{kind: raw, samples: {}}}\n\
             nics: [{{address: 127.0.0.1}}]\nengine: {{kind: onnx}}\nmodel_file: {}\n\
             {more}",
            fetched("models/digits.samples.u8").display(),
            other.display()
        );
        place.frontend_of(ports, &yaml)
    };
    let arguments = offline("200");
    // File names do not matter.
    let config = front(&[a, b], "");
    let ended = place.run(&config, "same", &arguments).with_code(0);
    let hash = |out: &str, i: usize| {
        let content = &place.summary(out)["accelerators"][i]["content"];
        content["sha256"].as_str().expect("a hash").to_owned()
    };
    let own = hash("same", 0);
    assert_eq!(own, hash("same", 1));
    let line = format!("model        digits.onnx, SHA-256 {own}");
    assert!(ended.stdout.lines().any(|l| l == line), "{}", ended.stdout);

    let config = front(&[a, b, c], "");
    let ended = place.run(&config, "differ", &arguments).with_code(2);
    let error = ended.error();
    assert_has(
        error,
        &[
            "acc-a",
            "acc-b",
            "acc-c",
            &own,
            "other.onnx",
            "model_files: any",
        ],
    );
    assert!(!place.path("differ").join("summary.json").exists());

    let config = front(&[a, c], "model_files: any\n");
    let ended = place.run(&config, "any", &arguments).with_code(0);
    let theirs = hash("any", 1);
    assert_ne!(theirs, own);
    let line = format!("acc-c: other.onnx, SHA-256 {theirs}");
    assert!(unbroken(&ended.stdout).contains(&line), "{}", ended.stdout);

    // A run with --local also shows the model's hash.
    let local = [&arguments[..], &["--local"]].concat();
    place.run(&config, "local", &local).with_code(0);
    assert_eq!(hash("local", 0), theirs);
}
