//! The last line of a run names its limit. (`report` tests how each cause is found.)

use crate::common::{TestFolder, offline, one_of_digests};

#[test]
fn the_part_of_a_slow_engine_that_limits_is_named_last() {
    let place = TestFolder::new();
    let engine = "engine: {kind: digest, max_batch: 32, delay_us: 20000, threads: 1}";
    let (config, _accelerator) = one_of_digests(&place, engine, "");
    let ended = place.run(&config, "out", &offline("3000")).judged();
    let limits = place.summary("out")["limits"].clone();
    let line = limits["line"].as_str().expect("a line").to_owned();
    // The limit is printed last, before the path of the page.
    let mut printed: Vec<_> = ended.stdout.split_whitespace().collect();
    let page = printed.pop().expect("a page");
    assert!(page.ends_with("report.html"), "{page}");
    let words = format!("limited by {line}");
    let words: Vec<_> = words.split_whitespace().collect();
    assert!(printed.ends_with(&words), "{line}\n{}", ended.stdout);
    // A machine without a free core adds `cores`.
    let mut findings = limits["findings"].as_array().expect("findings").iter();
    assert!(findings.any(|f| f["cause"] == "engine_threads"), "{line}");
}
