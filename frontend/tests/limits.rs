//! The last line of a run names its limit. These causes appear on any machine, however busy.

mod common;

use std::{thread::sleep, time::Duration};

use common::{Running, TestFolder, offline, one_of_digests, words};

/// A Server run with a rate and a bound that even a busy machine keeps.
const SERVER: &str = "--scenario server --target-qps 200 --duration-s 4 --set min_query_count=1 \
    --set target_latency=20000 --warm-up-ms=50";

/// Runs over one connection with this engine and NIC, and with `stop` holds the accelerator for a
/// while. Returns the causes and their line.
fn run(engine: &str, nic: &str, arguments: &[&str], stop: bool) -> (Vec<String>, String) {
    let place = TestFolder::new();
    let engine = format!("engine: {{{engine}}}");
    let nics = format!("nics: [{{address: 127.0.0.1, {nic}}}]\n");
    let (config, accelerator) = one_of_digests(&place, &engine, &nics);
    let command = place.frontend(&config, "out", arguments);
    let mut frontend = Running::start(&place, "frontend", command);
    if stop {
        frontend.wait_until_loadgen_runs(&place, "out");
        sleep(Duration::from_millis(1000));
        accelerator.signal(libc::SIGSTOP);
        sleep(Duration::from_millis(1600));
        accelerator.signal(libc::SIGCONT);
    }
    let ended = frontend.end().judged();
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
    let (causes, line) = run(engine, "connections: 2", &words(SERVER), false);
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
fn the_part_of_a_slow_engine_that_limits_is_named() {
    let two = "connections: 2";
    for (cause, engine, nic, samples) in [
        (
            "engine_threads",
            "max_batch: 32, delay_us: 20000, threads: 1",
            two,
            "3000",
        ),
        (
            "max_batch",
            "max_batch: 1, delay_us: 4000, threads: 2",
            two,
            "800",
        ),
        (
            "slots",
            "max_batch: 64, delay_us: 8000, threads: 2",
            "connections: 1, slots: 2",
            "400",
        ),
    ] {
        let engine = format!("kind: digest, {engine}");
        names(cause, run(&engine, nic, &offline(samples), false));
    }
}

#[test]
fn an_accelerator_that_was_stopped_for_a_part_of_the_run_is_named() {
    let said = run("kind: digest", "connections: 2", &words(SERVER), true);
    assert!(said.1.contains("acc"), "{}", said.1);
    names("accelerator", said);
}
