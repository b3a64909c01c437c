//! Compressed samples between real processes over TCP. Each travels at its compressed length, the
//! accelerator decompresses it, and each answer is the digest of the original sample.

mod common;

use std::path::PathBuf;

use common::{Running, TestFolder, accelerator, assert_has, free_ports, offline};
use serde_json::Value;

/// Compressible volumes of different sizes, as of scans, and one of noise.
const VOLUMES: usize = 40;

fn volumes() -> Vec<Vec<u8>> {
    let noise = |i: usize| (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[7];
    let volume = |n: usize| -> Vec<u8> {
        let len = 4 * (20_000 + 3001 * n);
        match n {
            7 => (0..len).map(noise).collect(),
            _ => (0..len)
                .map(|i| {
                    if i % 4096 < 3000 {
                        0
                    } else {
                        noise(i / 16 + n)
                    }
                })
                .collect(),
        }
    };
    (0..VOLUMES).map(volume).collect()
}

const MODEL: &str = "inputs: [{name: volume, dtype: f32, shape: [160000], ragged: true}], \
                     output: {name: classes, dtype: u8, shape: [160000], ragged: true}";

fn model(compression: &str) -> String {
    format!("model: {{name: volumes, {MODEL}{compression}}}\n")
}

fn node(place: &TestFolder, control: u16, compression: &str) -> PathBuf {
    let engine = "engine: {kind: digest, max_batch: 2, threads: 2}\nmemory_mib: 512";
    place.accelerator_of("acc-a", control, &(model(compression) + engine))
}

fn front(place: &TestFolder, control: u16, compression: &str, more: &str) -> PathBuf {
    let rest = "dataset: {kind: raw, samples: volumes, lengths: lengths}\nverify: digest\n\
                nics: [{address: 127.0.0.1, connections: 2, slots: 8}]\n";
    place.frontend_of(&[control], &(model(compression) + rest + more))
}

fn data(place: &TestFolder) -> u64 {
    let volumes = volumes();
    let lens = volumes
        .iter()
        .map(|v| u32::try_from(v.len()).expect("small"));
    let lengths: Vec<u8> = lens.flat_map(u32::to_le_bytes).collect();
    place.write("lengths", lengths);
    place.write("volumes", volumes.concat());
    volumes.iter().map(|v| v.len() as u64).sum()
}

fn sent(summary: &Value) -> u64 {
    let all = summary["connections"].as_array().expect("a list");
    all.iter().filter_map(|c| c["tx"]["bytes"].as_u64()).sum()
}

#[test]
fn compressed_volumes_arrive_whole_and_smaller() {
    const LZ4: &str = ", compression: lz4";
    let place = TestFolder::new();
    let bytes = data(&place);
    let mut carried = Vec::new();
    for compression in ["", LZ4] {
        let [port] = free_ports();
        let serving = accelerator(&place, &node(&place, port, compression));
        let config = front(&place, port, compression, "");
        let samples = (3 * VOLUMES).to_string();
        let out = format!("out{}", compression.len());
        let ended = place.run(&config, &out, &offline(&samples)).judged();
        let summary = place.summary(&out);
        // Each answer depends on every byte and the length of the original sample.
        assert_eq!(summary["verified"]["mismatches"], 0);
        assert_eq!(summary["verified"]["compared"], 3 * VOLUMES);
        carried.push(sent(&summary));
        let undone = &summary["accelerators"][0]["used"]["engine"]["decompressed"];
        // The accelerator also decompresses warm-up samples, which LoadGen does not count.
        let issued = 3 * VOLUMES as u64;
        if compression.is_empty() {
            assert_eq!(undone["samples"], 0, "{undone}");
            assert!(!ended.stdout.contains("decompressed"), "{}", ended.stdout);
        } else {
            assert!(undone["samples"].as_u64() >= Some(issued), "{undone}");
            assert!(undone["to_bytes"].as_u64() >= Some(3 * bytes), "{undone}");
            assert!(undone["from_bytes"].as_u64() < undone["to_bytes"].as_u64());
            assert!(undone["took_us"].as_u64() > Some(0));
            assert_has(&ended.stdout, &["samples decompressed"]);
            served(&serving);
        }
    }
    assert!(2 * carried[1] < carried[0], "{carried:?}");
}

/// Checks that the accelerator also reports its decompressed samples.
fn served(serving: &Running) {
    serving.signal(libc::SIGTERM);
    let lines = serving.remaining_lines();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("samples decompressed")),
        "{lines:?}"
    );
}

#[test]
fn nodes_that_compress_differently_do_not_begin() {
    let place = TestFolder::new();
    data(&place);
    let [port] = free_ports();
    let _serving = accelerator(&place, &node(&place, port, ""));
    let config = front(&place, port, ", compression: lz4", "");
    let ended = place.run(&config, "out", &offline("40")).with_code(2);
    assert_has(&ended.stderr, &["compression", "lz4"]);
}

#[test]
fn one_process_decompresses_as_well() {
    let place = TestFolder::new();
    data(&place);
    let engine = "engine: {kind: digest, max_batch: 2}\n";
    let config = front(&place, 1, ", compression: lz4", engine);
    let flags = [&offline("80")[..], &["--local"]].concat();
    place.run(&config, "out", &flags).judged();
    let verified = &place.summary("out")["verified"];
    assert_eq!(verified["mismatches"], 0);
    assert_eq!(verified["compared"], 80);
}
