//! The last line of a run names its limit. These causes appear on any machine, however busy.

use crate::common::{TestFolder, offline, one_of_digests};

#[test]
fn the_part_of_a_slow_engine_that_limits_is_named_last() {
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
        let place = TestFolder::new();
        let engine = format!("engine: {{kind: digest, {engine}}}");
        let nics = format!("nics: [{{address: 127.0.0.1, {nic}}}]\n");
        let (config, _accelerator) = one_of_digests(&place, &engine, &nics);
        let ended = place.run(&config, "out", &offline(samples)).judged();
        let limits = place.summary("out")["limits"].clone();
        let line = limits["line"].as_str().expect("a line").to_owned();
        // The limit is printed last, before the path of the page.
        let mut printed: Vec<_> = ended.stdout.split_whitespace().collect();
        let page = printed.pop().expect("a page");
        assert!(page.ends_with("report.html"), "{page}");
        let words = format!("limited by {line}");
        let words: Vec<_> = words.split_whitespace().collect();
        assert!(printed.ends_with(&words), "{line}\n{}", ended.stdout);
        let findings = limits["findings"].as_array().expect("findings").iter();
        let mut causes = findings.map(|f| f["cause"].as_str().expect("a cause"));
        // A machine without a free core adds `cores`.
        assert!(causes.any(|found| found == cause), "{cause}: {line}");
    }
}
