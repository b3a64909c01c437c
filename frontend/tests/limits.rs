//! The last line of a run names what limited it: causes that show on any machine, however busy it
//! is. `cargo xtask bench limits` plants the others too, each several times.

mod common;

use std::{fs, time::Duration};

use common::{Ended, Place, Running, accelerator, free_ports, offline};
use serde_json::Value;

/// Server at a rate that anything keeps up with, for so many seconds, with a bound that a machine
/// with other things to do keeps as well.
fn server(seconds: &str) -> [&str; 11] {
    [
        "--scenario",
        "server",
        "--target-qps",
        "200",
        "--duration-s",
        seconds,
        "--set",
        "min_query_count=1",
        "--set",
        "target_latency=20000",
        "--warm-up-ms=50",
    ]
}

/// What a run said: the cause and the line in `summary.json`, with what was printed.
fn said(place: &Place, ended: &Ended) -> (String, String) {
    assert!(matches!(ended.code, Some(0 | 1)), "{}", ended.stderr);
    let limits = place.summary("out")["limits"].clone();
    let line = limits["line"].as_str().expect("a line").to_owned();
    // It is the last that is printed, in as many lines as it takes.
    let printed: Vec<_> = ended.stdout.split_whitespace().collect();
    let words: Vec<_> = "limited by"
        .split(' ')
        .chain(line.split_whitespace())
        .collect();
    assert!(printed.ends_with(&words), "{line}\n{}", ended.stdout);
    let times = ended.stdout.lines().filter(|l| l.starts_with("limited by"));
    assert_eq!(times.count(), 1, "{}", ended.stdout);
    let cause = match &limits["findings"][0]["cause"] {
        Value::String(cause) => cause.clone(),
        _ => "nothing".to_owned(),
    };
    (cause, line)
}

/// A run over one connection between an engine and a NIC of this kind.
fn run(engine: &str, nic: &str, arguments: &[&str]) -> (String, String) {
    let place = Place::new();
    let [control] = free_ports();
    let config = place.digest_accelerator("acc", control, engine);
    let _accelerator = accelerator(&place, &config);
    let nics = format!("nics: [{{address: 127.0.0.1, {nic}}}]\n");
    let config = place.digest_frontend(&[control], &nics);
    let ended = common::run(&place, place.frontend(&config, "out", arguments));
    said(&place, &ended)
}

#[test]
fn a_healthy_run_is_limited_by_nothing() {
    let engine = "engine: {kind: digest, delay_us: 500}";
    let (cause, line) = run(engine, "connections: 2", &server("3"));
    // A machine that gives it no core at all is a limit, and the only one that there may be.
    if cause == "cores" {
        return;
    }
    assert_eq!(cause, "nothing", "{line}");
    assert!(
        line.starts_with("nothing: ") && line.contains("scheduled"),
        "{line}"
    );
}

#[test]
fn one_engine_thread_is_named() {
    let engine = "engine: {kind: digest, max_batch: 32, delay_us: 20000, threads: 1}";
    let (cause, line) = run(engine, "connections: 2", &offline("3000"));
    assert_eq!(cause, "engine_threads", "{line}");
}

#[test]
fn a_largest_batch_of_one_is_named() {
    let engine = "engine: {kind: digest, max_batch: 1, delay_us: 4000, threads: 2}";
    let (cause, line) = run(engine, "connections: 2", &offline("800"));
    assert_eq!(cause, "max_batch", "{line}");
}

#[test]
fn two_slots_are_named() {
    let engine = "engine: {kind: digest, max_batch: 64, delay_us: 8000, threads: 2}";
    let (cause, line) = run(engine, "connections: 1, slots: 2", &offline("400"));
    assert_eq!(cause, "slots", "{line}");
}

#[test]
fn an_accelerator_that_was_stopped_for_a_part_of_the_run_is_named() {
    let place = Place::new();
    let [control] = free_ports();
    let config = place.digest_accelerator("acc", control, "engine: {kind: digest}");
    let stopped = accelerator(&place, &config);
    let config = place.digest_frontend(&[control], "");
    let command = place.frontend(&config, "out", &server("4"));
    let mut frontend = Running::start(&place, "frontend", command);
    let log = place.path("out").join("mlperf_log_detail.txt");
    frontend.wait_until("LoadGen's log", || {
        fs::metadata(&log).is_ok_and(|m| m.len() > 0)
    });
    std::thread::sleep(Duration::from_millis(1000));
    stopped.signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(1600));
    stopped.signal(libc::SIGCONT);
    let (cause, line) = said(&place, &frontend.end());
    assert_eq!(cause, "accelerator", "{line}");
    assert!(line.contains("acc"), "{line}");
}
