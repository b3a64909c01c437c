//! `slots` and `nic_threads` with the value `auto` follow the need.

mod common;

use common::{TestFolder, assert_has, offline, one_of_digests};
use serde_json::Value;

/// Runs this many samples against one accelerator; `there` and `here` are additional YAML.
fn summary(there: &str, here: &str, samples: &str) -> (Value, String) {
    let place = TestFolder::new();
    let (config, _acc) = one_of_digests(&place, there, here);
    let ended = place.run(&config, "out", &offline(samples)).with_code(0);
    (place.summary("out"), ended.stdout)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn batches_are_full_though_not_every_slot_is_in_use() {
    // A slow engine, so that the transport is not the limit.
    let engine = "engine: {kind: digest, max_batch: 256, delay_us: 100000}\n";
    let (s, text) = summary(engine, "", "8000");
    let total = &s["connections_total"];
    // There are 2,048 slots on each of three connections; at least three batches must be in flight.
    assert_eq!(number(&total["slots"]), 3 * 2048);
    let allowed = number(&total["allowed"]);
    assert!((3 * 256..3 * 2048).contains(&allowed), "{allowed}");
    assert!(number(&total["in_flight_max"]) < 2048);
    assert_has(&text, &["slots        6,144 on 3 connections, "]);
    let batches = s["accelerators"][0]["batches"].as_object().expect("sizes");
    let count: u64 = batches.values().map(number).sum();
    // 32 batches would do if all were full; the first and the last are not.
    assert!((32..=42).contains(&count), "{batches:?}");
    assert!(!text.contains("limited by   slots"), "{text}");
}

#[test]
fn nics_share_threads_as_the_configuration_says() {
    let several = |key: &str, n: usize| {
        let entries = vec![format!("{{{key}}}"); n].join(", ");
        format!("nics: [{entries}]\n")
    };
    let here = several("address: 127.0.0.1, connections: 1", 8);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // The frontend has eight NICs with one connection each, the accelerator one NIC.
    let by_cores = |most| (cores / 2).clamp(1, most) as u64;
    let auto = ("auto", (by_cores(8), by_cores(4)));
    for (word, expected) in [("3", (3, 3)), ("8", (8, 8)), auto] {
        let here = format!("{here}nic_threads: {word}\n");
        let there = format!("nic_threads: {word}\n");
        let (s, _) = summary(&there, &here, "20000");
        let threads = number(&s["evidence"]["node"]["nics"]["threads"]);
        let there = number(&s["accelerators"][0]["used"]["nics"]["threads"]);
        assert_eq!((threads, there), expected, "{word}");
        // Each of the eight connections carried samples.
        let all = s["connections"].as_array().expect("a list");
        assert_eq!(all.len(), 8);
        assert!(all.iter().all(|c| number(&c["samples"]) > 0), "{all:?}");
    }
}
