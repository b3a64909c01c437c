//! The last line of a run names its limit. These causes appear on any machine, however busy.

mod common;

use std::{fs, time::Duration};

use common::{Place, Running, accelerator, free_ports, offline};

/// A Server run with a rate and a bound that even a busy machine keeps.
const SERVER: [&str; 11] = [
    "--scenario",
    "server",
    "--target-qps",
    "200",
    "--duration-s",
    "4",
    "--set",
    "min_query_count=1",
    "--set",
    "target_latency=20000",
    "--warm-up-ms=50",
];

/// Runs over one connection with this engine and NIC, and with `stop` holds the accelerator for a
/// while. Returns the causes and their line.
fn run(engine: &str, nic: &str, arguments: &[&str], stop: bool) -> (Vec<String>, String) {
    let place = Place::new();
    let [control] = free_ports();
    let config = place.digest_accelerator("acc", control, &format!("engine: {{{engine}}}"));
    let accelerator = accelerator(&place, &config);
    let nics = format!("nics: [{{address: 127.0.0.1, {nic}}}]\n");
    let config = place.digest_frontend(&[control], &nics);
    let command = place.frontend(&config, "out", arguments);
    let mut frontend = Running::start(&place, "frontend", command);
    if stop {
        let log = place.path("out").join("mlperf_log_detail.txt");
        frontend.wait_until("LoadGen's log", || {
            fs::metadata(&log).is_ok_and(|m| m.len() > 0)
        });
        std::thread::sleep(Duration::from_millis(1000));
        accelerator.signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(1600));
        accelerator.signal(libc::SIGCONT);
    }
    let ended = frontend.end();
    assert!(matches!(ended.code, Some(0 | 1)), "{}", ended.stderr);
    let limits = place.summary("out")["limits"].clone();
    let line = limits["line"].as_str().expect("a line").to_owned();
    // The limit is printed last, before the path of the page.
    let mut printed: Vec<_> = ended.stdout.split_whitespace().collect();
    assert!(
        printed
            .pop()
            .is_some_and(|page| page.ends_with("report.html"))
    );
    let words = format!("limited by {line}");
    let words: Vec<_> = words.split_whitespace().collect();
    assert!(printed.ends_with(&words), "{line}\n{}", ended.stdout);
    let findings = limits["findings"].as_array().expect("findings").iter();
    let causes = findings.map(|f| f["cause"].as_str().expect("a cause").to_owned());
    (causes.collect(), line)
}

/// Checks that `cause` comes first; a machine without a free core adds `cores` before it.
fn names(cause: &str, (mut causes, line): (Vec<String>, String)) {
    causes.retain(|c| c != "cores");
    assert_eq!(causes.first().map(String::as_str), Some(cause), "{line}");
}

#[test]
fn a_healthy_run_is_limited_by_nothing() {
    let engine = "kind: digest, delay_us: 500";
    let (causes, line) = run(engine, "connections: 2", &SERVER, false);
    // A machine without a free core has that limit and no other.
    if causes.first().is_none_or(|c| c != "cores") {
        assert!(causes.is_empty(), "{line}");
        assert!(
            line.starts_with("nothing: ") && line.contains("scheduled"),
            "{line}"
        );
    }
}

#[test]
fn one_engine_thread_is_named() {
    let engine = "kind: digest, max_batch: 32, delay_us: 20000, threads: 1";
    names(
        "engine_threads",
        run(engine, "connections: 2", &offline("3000"), false),
    );
}

#[test]
fn a_largest_batch_of_one_is_named() {
    let engine = "kind: digest, max_batch: 1, delay_us: 4000, threads: 2";
    names(
        "max_batch",
        run(engine, "connections: 2", &offline("800"), false),
    );
}

#[test]
fn two_slots_are_named() {
    let engine = "kind: digest, max_batch: 64, delay_us: 8000, threads: 2";
    names(
        "slots",
        run(engine, "connections: 1, slots: 2", &offline("400"), false),
    );
}

#[test]
fn an_accelerator_that_was_stopped_for_a_part_of_the_run_is_named() {
    let said = run("kind: digest", "connections: 2", &SERVER, true);
    assert!(said.1.contains("acc"), "{}", said.1);
    names("accelerator", said);
}
