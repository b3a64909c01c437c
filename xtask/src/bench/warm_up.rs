//! `bench warm-up`: the first second of a run against the rest of it, with connections that were
//! warmed up and with cold ones, in turns.
//!
//! The engine takes its time, as a GPU does, and Offline is as fast as it: what
//! the copies of this machine's kernel could do at the moment would decide the
//! ratio otherwise, and that changes by half from one second to the next.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::pair::{Nodes, Pair, Ran, median, write};

/// Runs of each.
const TURNS: usize = 5;
/// Seconds of a run.
const SECONDS: f64 = 4.0;
/// Server's rate as a share of what the engine can do.
const LOAD: f64 = 0.6;
/// Bytes of a sample, an image of 224 by 224 in three colours and a small message; samples in a
/// batch, and microseconds of the engine for it.
const SHAPES: [(usize, u32, u32); 2] = [(150_528, 32, 4000), (64, 512, 4000)];
/// Connections of the pair.
const CONNECTIONS: usize = 4;

/// What one way of beginning came to, a figure for each run.
#[derive(Default)]
struct Figures {
    /// First second over steady state.
    first: Vec<f64>,
    /// The longest latency of all, in microseconds.
    longest_us: Vec<f64>,
    /// Network time of the first sample over each connection, in microseconds; of warm-ups alone.
    cold_us: Vec<f64>,
    warm_us: Vec<f64>,
}

impl Figures {
    fn take(&mut self, ran: &Ran) {
        let s = &ran.summary;
        self.first
            .extend(s["throughput"]["first_over_steady"].as_f64());
        self.longest_us.push(ran.total_us("max"));
        let each = s["connections"].as_array().into_iter().flatten();
        for c in each {
            self.cold_us.extend(c["cold_us"].as_f64());
            self.warm_us.extend(c["warm_us"].as_f64());
        }
    }
}

/// Prints the table and writes `target/bench/warm-up.json`.
///
/// # Errors
/// A program cannot be built, or a run came to no result.
pub fn run(root: &Path) -> Result<()> {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for (bytes, batch, delay_us) in SHAPES {
        let frontend = format!(
            "model: {{name: digest, inputs: [{{name: input, dtype: u8, shape: [{bytes}], ragged: true}}], \
             output: {{name: output, dtype: u8, shape: [8]}}}}\n\
             dataset: {{kind: random, distribution: fixed, count: 256}}\n"
        );
        let pair = Pair::start(
            root,
            &Nodes {
                name: "warm-up",
                accelerator_model: &format!("{{name: digest, max_input_bytes: {bytes}}}"),
                frontend: &frontend,
                engine: &format!(
                    "{{kind: digest, max_batch: {batch}, max_delay_us: 1000, delay_us: {delay_us}}}"
                ),
                connections: CONNECTIONS,
            },
        )?;
        let offline = |samples: f64| {
            let samples = format!("{samples:.0}");
            let fixed = [
                "--scenario",
                "offline",
                "--set",
                "min_duration=0",
                "--samples",
            ];
            let all = fixed.into_iter().map(str::to_owned);
            all.chain([samples]).collect::<Vec<String>>()
        };
        let per_s = f64::from(batch) / f64::from(delay_us) * 1e6;
        let server: Vec<String> = format!(
            "--scenario server --target-qps {:.0} --duration-s {SECONDS} --set target_latency=2000",
            per_s * LOAD
        )
        .split(' ')
        .map(str::to_owned)
        .collect();
        for (scenario, arguments) in [("Offline", offline(per_s * SECONDS)), ("Server", server)] {
            let [mut warm, mut cold] = [(); 2].map(|()| Figures::default());
            for _ in 0..TURNS {
                warm.take(&pair.run(&strs(&arguments))?);
                let without = [strs(&arguments), vec!["--warm-up-ms", "0"]].concat();
                cold.take(&pair.run(&without)?);
            }
            let (line, row) = compared(bytes, scenario, warm, cold);
            println!("{line}");
            lines.push(line);
            rows.push(row);
        }
    }
    println!(
        "\n{:>7} {:<9} {:>14} {:>8} {:>16} {:>12} {:>22}",
        "bytes",
        "scenario",
        "first s, warm",
        "cold",
        "longest, warm",
        "cold",
        "network, cold -> warm"
    );
    lines.iter().for_each(|line| println!("{line}"));
    println!(
        "Medians of {TURNS} turns: the first second over the steady state, the longest latency of a run, and the network \
         time of the first sample over a connection and of later ones."
    );
    write(root, "warm-up", &rows)
}

fn strs(of: &[String]) -> Vec<&str> {
    of.iter().map(String::as_str).collect()
}

fn compared(bytes: usize, scenario: &str, mut warm: Figures, mut cold: Figures) -> (String, Value) {
    let first = [median(&mut warm.first), median(&mut cold.first)];
    let longest = [median(&mut warm.longest_us), median(&mut cold.longest_us)];
    let network = [median(&mut warm.cold_us), median(&mut warm.warm_us)];
    let line = format!(
        "{bytes:>7} {scenario:<9} {:>14.3} {:>8.3} {:>13.1} ms {:>9.1} ms {:>10.0} -> {:>5.0} us",
        first[0],
        first[1],
        longest[0] / 1000.0,
        longest[1] / 1000.0,
        network[0],
        network[1]
    );
    let row = json!({
        "bytes": bytes, "scenario": scenario, "connections": CONNECTIONS, "turns": TURNS,
        "first_over_steady": first[0], "first_over_steady_cold": first[1],
        "longest_us": longest[0], "longest_us_cold": longest[1],
        "network_cold_us": network[0], "network_warm_us": network[1],
    });
    (line, row)
}
