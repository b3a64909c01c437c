//! A gateway's run folder, and its comparison with a client's result.

use std::{path::Path, process::Command};

use serde_json::{Value, json};

use super::{Place, TOKENS, request};

/// The output of a command of `qdl endpoints`, and whether all is well.
fn endpoints(task: &str, paths: &[&Path]) -> (String, bool) {
    let mut qdl = Command::new(env!("CARGO_BIN_EXE_qdl"));
    let output = qdl.args(["endpoints", task]).args(paths).output();
    let output = output.expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    (text + &errors, output.status.success())
}

fn client(folder: &Path, stops: usize) {
    let series = |ms: u64| {
        let ns = ms * 1_000_000;
        json!({"total": ns, "percentiles": {"50.0": ns, "90.0": ns, "99.0": ns}})
    };
    let result = json!({
        "n_samples_issued": 3, "n_samples_completed": 3, "n_samples_failed": 0,
        "duration_ns": 2_000_000_000u64, "state": "complete", "complete": true,
        "ttft": series(20_000), "tpot": series(1), "latency": series(20_000),
        "output_sequence_lengths": {"total": 3 * TOKENS}, "qps": 1.5, "tps": 60.0,
        "legacy_loadgen_window_duration_ns": null, "finish_reason_counts": {"stop": stops},
    });
    std::fs::create_dir_all(folder.join("performance")).expect("a folder");
    let file = folder.join("performance/result_summary.json");
    std::fs::write(file, result.to_string()).expect("a file");
}

#[test]
fn a_gateways_end_leaves_its_figures_and_they_are_compared_with_a_clients() {
    let run = tempfile::tempdir().expect("a folder");
    let mut place = Place::with_output(&["both"], 500, "", Some(run.path()));
    for prompt in [[1], [2], [3]] {
        assert_eq!(place.ask(&request(&prompt, false)).0, 200);
    }
    assert_eq!(place.ask(&json!({"prompt": "text"})).0, 400);
    place.gateway.end();

    let text = std::fs::read_to_string(run.path().join("gateway.json")).expect("its figures");
    let figures: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(figures["model"], "m");
    let accelerator = json!([{"node": "node-0", "engine": "tokens"}]);
    assert_eq!(figures["accelerators"], accelerator);
    let statuses = json!({"status_200": 3, "status_429": 0, "status_4xx": 1, "status_5xx": 0});
    assert_eq!(figures["answers"], statuses);
    let requests = &figures["requests"];
    assert_eq!(requests["completed"], 3);
    assert_eq!(requests["tokens"], 3 * TOKENS);
    let at = |key: &str, percentile: &str| requests[key][percentile].as_u64().expect(key);
    assert!(at("ttft_ns", "p50") < at("latency_ns", "p50"), "{text}");
    assert!(
        at("latency_ns", "max") <= at("window_ns", "whole"),
        "{text}"
    );
    let rows = std::fs::read_to_string(run.path().join("requests.csv")).expect("its rows");
    assert_eq!(rows.lines().count(), 4, "{rows}");

    let folder = tempfile::tempdir().expect("a folder");
    client(folder.path(), 3);
    let (said, is_well) = endpoints("compare", &[run.path(), folder.path()]);
    assert!(is_well && said.contains("The whole run counts"), "{said}");
    assert!(said.contains("The client is a bottleneck"), "{said}");
    client(folder.path(), 2);
    let (said, is_well) = endpoints("compare", &[run.path(), folder.path()]);
    assert!(
        !is_well && said.contains("1 of 3 completed samples have no finish_reason"),
        "{said}"
    );
    let (said, is_well) = endpoints("compare", &[run.path(), &run.path().join("none.json")]);
    assert!(!is_well && said.contains("none.json"), "{said}");
}

#[test]
fn a_running_gateway_is_described_with_its_round_trip_and_a_draft_with_holes_is_refused() {
    let (run, client) = (tempfile::tempdir(), tempfile::tempdir());
    let (run, client) = (run.expect("a folder"), client.expect("a folder"));
    let mut place = Place::with_output(&["both"; 2], 500, "", Some(run.path()));
    let config = json!({
        "model_params": {"name": "m"},
        "settings": {"load_pattern": {"type": "concurrency", "target_concurrency": 64}},
        "endpoint_config": {"endpoints": [format!("http://{}", place.address)]},
    });
    let file = client.path().join("config.yaml");
    std::fs::write(&file, config.to_string()).expect("a file");
    let paths = [run.path(), client.path()];
    let (said, is_well) = endpoints("describe", &paths);
    assert!(is_well, "{said}");
    let read = |name: &str| std::fs::read_to_string(client.path().join(name)).expect(name);
    let network = read("documentation/network.md");
    for words in [
        "p50 ",
        " of 500 |",
        "| IP routers on the way | 0 |",
        "loopback: one machine",
    ] {
        assert!(network.contains(words), "{words}: {network}");
    }
    let rows = network.lines().filter(|line| line.starts_with("| node-"));
    let measured = rows.filter(|row| row.contains("| tokens |") && row.ends_with(" us |"));
    assert_eq!(measured.count(), 2, "{network}");
    let system: Value = serde_json::from_str(&read("system_desc.json")).expect("JSON");
    assert_eq!(system["system_node_ensemble_total"], 1, "{system}");
    assert!(read("point.yaml").contains("concurrency: 64"));
    let (said, is_well) = endpoints("describe", &paths);
    assert!(
        is_well && said.contains("point.yaml: kept, it exists"),
        "{said}"
    );

    let (said, is_well) = endpoints("check", &[client.path()]);
    assert!(
        !is_well && said.contains("point.yaml:4: region: \"FILL IN"),
        "{said}"
    );
    place.gateway.end();
    let (said, is_well) = endpoints("describe", &paths);
    assert!(!is_well && said.contains(&place.address), "{said}");
}
