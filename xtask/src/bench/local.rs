//! `bench local`: the same engine over the network and in LoadGen's own process, in turns.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;

use super::pair::{Nodes, Pair, median, write};
use super::table::Table;

/// Turns of each; the medians are compared.
const TURNS: usize = 3;
/// Server aims at this share of what Offline does in one process.
const LOAD: f64 = 0.6;

struct Model {
    name: &'static str,
    accelerator: &'static str,
    frontend: &'static str,
    engine: &'static str,
    /// Samples of an Offline run: a few seconds.
    samples: &'static str,
}

// Paths are those of `cargo xtask setup`, from the folder of the configuration.
const MODELS: &[Model] = &[
    Model {
        name: "resnet50",
        accelerator: "{name: resnet50, file: ../../../.deps/models/resnet50.onnx}",
        frontend: "model: {name: resnet50, inputs: [{name: image, dtype: u8, shape: [3, 224, 224]}], \
                   output: {name: class, dtype: i64, shape: [1]}}\n\
                   dataset: {kind: random, distribution: fixed, count: 64}\n\
                   model_file: ../../../.deps/models/resnet50.onnx\n",
        engine: "{kind: onnx, max_batch: 8, max_delay_us: 2000, threads: 1, intra_threads: 1}",
        samples: "160",
    },
    Model {
        name: "digits",
        accelerator: "{name: digits, file: ../../../.deps/models/digits.onnx}",
        frontend: "model: {name: digits, inputs: [{name: pixels, dtype: u8, shape: [64]}], \
                   output: {name: class, dtype: i64, shape: [1]}}\n\
                   dataset: {kind: raw, samples: ../../../.deps/models/digits.samples.u8}\n\
                   model_file: ../../../.deps/models/digits.onnx\n",
        engine: "{kind: onnx, max_batch: 64, max_delay_us: 500, threads: 1, intra_threads: 1}",
        samples: "400000",
    },
];

/// Prints the table and writes `target/bench/local.json`.
///
/// # Errors
/// A model is missing, or a run came to no result.
pub fn run(root: &Path) -> Result<()> {
    for model in MODELS {
        let file = root
            .join(".deps/models")
            .join(format!("{}.onnx", model.name));
        ensure!(
            file.is_file(),
            "{} is missing: run `cargo xtask setup --models resnet50`",
            file.display()
        );
    }
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for model in MODELS {
        let pair = Pair::start(
            root,
            &Nodes {
                name: &format!("local-{}", model.name),
                accelerator_model: model.accelerator,
                frontend: model.frontend,
                engine: model.engine,
                connections: 2,
            },
        )?;
        let offline = [
            "--scenario",
            "offline",
            "--set",
            "min_duration=0",
            "--samples",
            model.samples,
        ];
        let (mut wire, mut local) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            wire.push(pair.run(&offline)?.per_s());
            local.push(pair.run(&[&offline[..], &["--local"]].concat())?.per_s());
        }
        let (network, one) = (median(&mut wire), median(&mut local));
        lines.push(line(model.name, "Offline", [network, one], [None, None]));
        rows.push(json!({
            "model": model.name, "scenario": "Offline", "network_per_s": network, "local_per_s": one,
            "ratio": network / one,
        }));

        let qps = format!("{:.1}", one * LOAD);
        let mut server = vec!["--scenario", "server", "--target-qps", &qps];
        server.extend(["--duration-s", "3", "--set", "target_latency=2000"]);
        let (mut wire, mut local) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
        for _ in 0..TURNS {
            for (arguments, into) in [
                (server.clone(), &mut wire),
                ([&server[..], &["--local"]].concat(), &mut local),
            ] {
                let ran = pair.run(&arguments)?;
                into[0].push(ran.per_s());
                into[1].push(ran.total_us("p50"));
                into[2].push(ran.total_us("p99"));
            }
        }
        let [network, network_p50, network_p99] = wire.map(|mut v| median(&mut v));
        let [one, one_p50, one_p99] = local.map(|mut v| median(&mut v));
        lines.push(line(
            model.name,
            "Server",
            [network, one],
            [Some([network_p50, one_p50]), Some([network_p99, one_p99])],
        ));
        rows.push(json!({
            "model": model.name, "scenario": "Server", "target_qps": qps.parse::<f64>().unwrap_or(0.0),
            "network_per_s": network, "local_per_s": one, "ratio": network / one,
            "network_p50_us": network_p50, "local_p50_us": one_p50,
            "network_p99_us": network_p99, "local_p99_us": one_p99,
        }));
    }
    let table = Table::new(&[
        ("model", 9),
        ("scenario", 8),
        ("network/s", 12),
        ("local/s", 12),
        ("ratio", 6),
        ("p50 us, local", 14),
        ("p99 us, local", 16),
    ]);
    lines.into_iter().for_each(|line| table.row(line));
    println!("Medians of {TURNS} turns; Server at {LOAD} of what Offline does in one process.");
    write(root, "local", &rows)
}

/// One row: rates and latencies over the network and in one process.
fn line(
    model: &str,
    scenario: &str,
    [network, local]: [f64; 2],
    latencies: [Option<[f64; 2]>; 2],
) -> Vec<String> {
    let [p50, p99] =
        latencies.map(|l| l.map_or_else(String::new, |[a, b]| format!("{a:.0}, {b:.0}")));
    vec![
        model.to_owned(),
        scenario.to_owned(),
        format!("{network:.1}"),
        format!("{local:.1}"),
        format!("{:.3}", network / local),
        p50,
        p99,
    ]
}
