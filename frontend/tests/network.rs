//! Two programs and a wire between them.

mod common;

use std::{path::Path, thread::sleep, time::Duration};

use common::{
    Place, Running, accelerator, accelerator_with, fetched, free_ports, offline, run,
    wire_and_local,
};

/// Quick to notice a loss, so that the test need not wait.
const QUICK: &str = "deadlines: {connect_ms: 4000, lost_ms: 2500, echo_interval_ms: 100, echo_timeout_ms: 900, \
    heartbeat_interval_ms: 200, heartbeat_timeout_ms: 1500}\n";

/// A Server run over the network of so many seconds, whose latencies do not matter.
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

/// Starts a frontend, and waits until its connections are warm and LoadGen's samples on their way.
fn start(place: &Place, config: &Path, out: &str, arguments: &[&str]) -> Running {
    let mut running = Running::start(place, "frontend", place.frontend(config, out, arguments));
    running.wait_until_it_says(" warmed ");
    sleep(Duration::from_millis(300));
    running
}

#[test]
fn a_hundred_thousand_digests_over_six_connections() {
    let place = Place::new();
    let [a, b] = free_ports();
    let _a = accelerator(&place, &place.digest_accelerator("acc-a", a, ""));
    let _b = accelerator(&place, &place.digest_accelerator("acc-b", b, ""));
    for (out, qsl) in [("registered", ""), ("staged", "qsl: staged\n")] {
        let config = place.digest_frontend(&[a, b], qsl);
        let arguments = offline("100000");
        let ended = run(&place, place.frontend(&config, out, &arguments));
        assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
        let s = place.summary(out);
        assert_eq!(
            (&s["samples"], &s["valid"]),
            (&100_000.into(), &true.into())
        );
        assert_eq!(s["connections"].as_array().map(Vec::len), Some(6));
        assert_eq!(s["mismatches"].as_array().map(Vec::len), Some(0));
        assert_eq!(s["fabric_note"], "loopback (not a permitted fabric)");
        let name = s["name"].as_str().expect("a name");
        assert!(
            name.contains("Network SUT") && name.contains("acc-a") && name.contains("acc-b"),
            "{name}"
        );
        assert!(s["name_round_trip_us"].as_f64() > Some(0.0));
        let copies = if qsl.is_empty() { 0 } else { 100_000 };
        assert_eq!(s["staged_copies"], copies, "{out}");
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
}

/// Samples that each GPU of the only accelerator ran, by its index.
fn by_gpu(summary: &serde_json::Value) -> Vec<(u64, u64)> {
    let gpus = summary["accelerators"][0]["gpus"].as_array().expect("GPUs");
    let samples = |gpu: &serde_json::Value| {
        let sizes = gpu["batches"].as_object().expect("sizes");
        let each = sizes.iter().map(|(size, batches)| {
            size.parse::<u64>().expect("a number") * batches.as_u64().expect("a number")
        });
        each.sum()
    };
    let each = gpus
        .iter()
        .map(|g| (g["index"].as_u64().expect("an index"), samples(g)));
    each.collect()
}

#[test]
fn one_accelerator_with_two_gpus_has_a_pipeline_and_a_record_for_each() {
    let place = Place::new();
    let [port] = free_ports();
    let engine = "engine: {kind: digest, max_batch: 8, threads: 2, delay_us: 20, gpus: [1, 4]}\n";
    let acc = place.write(
        "acc.yaml",
        format!(
            "node: acc\ncontrol: {{listen: \"127.0.0.1:{port}\"}}\n\
             model: {{name: digest, max_input_bytes: 20000}}\n{engine}\
             nics:\n  - {{listen: \"127.0.0.1:0\", gpu: 1}}\n  - {{listen: \"127.0.0.1:0\", gpu: 4}}\n"
        ),
    );
    let _acc = accelerator(&place, &acc);
    let nics = "nics:\n  - {address: 127.0.0.1, connections: 2}\n  - {address: 127.0.0.1, connections: 2}\n";
    let config = place.digest_frontend(&[port], &format!("{nics}{engine}"));
    let arguments = offline("20000");
    for (out, more) in [("wire", None), ("local", Some("--local"))] {
        let arguments = [&arguments[..], more.as_slice()].concat();
        let ended = run(&place, place.frontend(&config, out, &arguments));
        assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
        let s = place.summary(out);
        assert_eq!((&s["samples"], &s["valid"]), (&20_000.into(), &true.into()));
        let each = by_gpu(&s);
        assert_eq!(
            each.iter().map(|(gpu, _)| *gpu).collect::<Vec<_>>(),
            [1, 4],
            "{out}"
        );
        // What warmed connections up was run too.
        let warmed = s["ledger"]["warmed"].as_u64().expect("a count");
        assert_eq!(warmed > 0, out == "wire");
        let all = each.iter().map(|(_, n)| n).sum::<u64>();
        assert_eq!(all, 20_000 + warmed, "{out}");
        assert!(each.iter().all(|(_, n)| *n > 1_000), "{out}: {each:?}");
        assert!(ended.stdout.contains("GPU 4 digest"), "{}", ended.stdout);
    }
}

#[test]
fn a_connection_that_does_not_answer_its_warm_up_stops_the_run_with_its_name() {
    let place = Place::new();
    let [a] = free_ports();
    let slow = "engine: {kind: digest, delay_us: 900000}\n";
    let _a = accelerator(&place, &place.digest_accelerator("acc-a", a, slow));
    let arguments = offline("10");
    let config = place.digest_frontend(&[a], "warm_up: {deadline_ms: 100}\n");
    let ended = run(&place, place.frontend(&config, "impatient", &arguments));
    assert_eq!(ended.code, Some(3), "{}{}", ended.stdout, ended.stderr);
    let errors: Vec<_> = ended
        .stderr
        .lines()
        .filter(|l| l.starts_with("error: "))
        .collect();
    let [error] = errors[..] else {
        panic!("{}", ended.stderr)
    };
    for part in [
        "connection acc-a/0 (nics[0], accelerator at 127.0.0.1:",
        "failed its warm-up: no answer within 100ms, nor from any other connection (warm_up.deadline_ms)",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(
        place.summary("impatient")["mismatches"]
            .as_array()
            .map(Vec::len),
        Some(0)
    );
    // The next does without.
    let config = place.digest_frontend(&[a], "warm_up: {budget_ms: 0}\n");
    let ended = run(&place, place.frontend(&config, "cold", &arguments));
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let s = place.summary("cold");
    assert_eq!(
        (&s["samples"], &s["warm_up"]),
        (&10.into(), &serde_json::Value::Null)
    );
}

#[test]
fn digits_over_the_wire_are_the_digits_of_one_process() {
    let model = fetched("models/digits.onnx");
    let place = Place::new();
    let [port] = free_ports();
    let acc = place.write(
        "digits-acc.yaml",
        format!(
            "node: acc\ncontrol: {{listen: \"127.0.0.1:{port}\"}}\n\
             model: {{name: digits, file: {}}}\nengine: {{kind: onnx}}\n\
             nics: [{{listen: \"127.0.0.1:0\"}}]\n",
            model.display()
        ),
    );
    let config = place.write(
        "digits.yaml",
        format!(
            "node: front\n\
             model: {{name: digits, inputs: [{{name: pixels, dtype: u8, shape: [64]}}], \
             output: {{name: class, dtype: i64, shape: [1]}}}}\n\
             dataset: {{kind: raw, samples: {}, labels: {}}}\n\
             accelerators: [{{control: \"127.0.0.1:{port}\"}}]\n\
             nics: [{{address: 127.0.0.1, connections: 2}}]\n\
             engine: {{kind: onnx}}\nmodel_file: {}\n",
            fetched("models/digits.samples.u8").display(),
            fetched("models/digits.labels.i64").display(),
            model.display()
        ),
    );
    let _acc = accelerator(&place, &acc);
    wire_and_local(&place, &config);
    let accuracy = |out| place.summary(out)["accuracy"].as_f64();
    assert_eq!(accuracy("wire"), accuracy("local"));
    assert!(accuracy("wire") > Some(0.97));
}

#[test]
fn one_of_two_accelerators_is_killed_and_the_run_goes_on() {
    let place = Place::new();
    let [a, b] = free_ports();
    let victim = accelerator(&place, &place.digest_accelerator("acc-a", a, ""));
    let _b = accelerator(&place, &place.digest_accelerator("acc-b", b, ""));
    let config = place.digest_frontend(&[a, b], QUICK);
    let frontend = start(&place, &config, "out", &server("2"));
    victim.signal(libc::SIGKILL);
    let ended = frontend.end();
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(
        ended.stderr.contains("acc-a"),
        "the loss is shown: {}",
        ended.stderr
    );
    let s = place.summary("out");
    assert_eq!(
        (&s["valid"], &s["ledger"]["emptied"]),
        (&true.into(), &0.into())
    );
    assert_eq!(s["ledger"]["lost_connections"], 3);
}

#[test]
fn the_last_accelerator_is_killed_or_stopped_and_the_frontend_says_which() {
    for signal in [libc::SIGKILL, libc::SIGSTOP] {
        let place = Place::new();
        let [port] = free_ports();
        let victim = accelerator(&place, &place.digest_accelerator("acc-01", port, ""));
        let config = place.digest_frontend(&[port], QUICK);
        let frontend = start(&place, &config, "out", &server("50"));
        victim.signal(signal);
        let ended = frontend.end();
        assert_eq!(ended.code, Some(3), "{}{}", ended.stdout, ended.stderr);
        let errors: Vec<_> = ended
            .stderr
            .lines()
            .filter(|l| l.starts_with("error: "))
            .collect();
        assert_eq!(errors.len(), 1, "{}", ended.stderr);
        assert!(
            errors[0].contains("acc-01") && errors[0].contains("into the run"),
            "{}",
            errors[0]
        );
        let s = place.summary("out");
        assert_eq!(
            (&s["valid"], &s["exit"]["code"]),
            (&false.into(), &3.into())
        );
        assert!(place.path("out").join("INVALID").is_file());
    }
}

#[test]
fn a_frontend_is_killed_and_the_next_is_served_right() {
    let place = Place::new();
    let [port] = free_ports();
    let _acc = accelerator(&place, &place.digest_accelerator("acc-01", port, ""));
    let config = place.digest_frontend(&[port], QUICK);
    for _ in 0..2 {
        let frontend = start(&place, &config, "killed", &server("50"));
        frontend.signal(libc::SIGKILL);
        assert_eq!(frontend.end().code, None);
        // The accelerator may take a moment to notice.
        sleep(Duration::from_millis(300));
        let ended = run(&place, place.frontend(&config, "next", &server("0.5")));
        assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    }
}

#[test]
fn a_second_frontend_is_told_that_one_is_served() {
    let place = Place::new();
    let [port] = free_ports();
    let _acc = accelerator(&place, &place.digest_accelerator("acc-01", port, ""));
    let config = place.digest_frontend(&[port], QUICK);
    let first = start(&place, &config, "first", &server("2"));
    let second = Running::start(
        &place,
        "second",
        place.frontend(&config, "second", &server("1")),
    )
    .end();
    assert_eq!(second.code, Some(2), "{}", second.stderr);
    assert!(
        second.stderr.contains("one frontend at a time"),
        "{}",
        second.stderr
    );
    let first = first.end();
    assert_eq!(first.code, Some(0), "{}", first.stderr);
}

#[test]
fn an_interrupted_frontend_leaves_the_accelerator_ready() {
    let place = Place::new();
    let [port] = free_ports();
    let acc = accelerator_with(
        &place,
        &place.digest_accelerator("acc-01", port, ""),
        &["--once"],
    );
    let config = place.digest_frontend(&[port], QUICK);
    let frontend = start(&place, &config, "out", &server("50"));
    frontend.signal(libc::SIGINT);
    let ended = frontend.end();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert_eq!(acc.end().code, Some(0), "--once ends after its frontend");
}

#[test]
fn nodes_of_one_name_and_another_model_are_refused() {
    let place = Place::new();
    let [a, b] = free_ports();
    let first = place.digest_accelerator("twin", a, "");
    let _a = accelerator(&place, &first);
    let _b = accelerator(&place, &place.digest_accelerator("twin", b, ""));
    let config = place.digest_frontend(&[a, b], QUICK);
    let ended = run(&place, place.frontend(&config, "out", &server("1")));
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("twin"), "{}", ended.stderr);

    let yaml = std::fs::read_to_string(place.digest_frontend(&[a], QUICK)).expect("written");
    let other = place.write("other.yaml", yaml.replace("20000", "30000"));
    let ended = run(&place, place.frontend(&other, "out", &server("1")));
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("30000") && ended.stderr.contains("20000"),
        "{}",
        ended.stderr
    );
}

#[test]
fn wrong_answers_over_the_wire_are_found() {
    let place = Place::new();
    let [port] = free_ports();
    let acc = place.digest_accelerator("acc-01", port, "engine: {kind: \"null\"}\n");
    let _acc = accelerator(&place, &acc);
    let config = place.digest_frontend(&[port], "");
    let ended = run(&place, place.frontend(&config, "out", &server("0.3")));
    assert_eq!(ended.code, Some(4), "{}{}", ended.stdout, ended.stderr);
    assert!(
        ended
            .stderr
            .contains("does the accelerator run the engine `digest`?"),
        "{}",
        ended.stderr
    );
}
