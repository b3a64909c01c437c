//! `cargo xtask bench fabric`: compares the TCP fabric with plain sockets.
//!
//! Four contenders do the same exchange in one run, on the same two CPUs, in alternating rounds:
//! spinning plain sockets, sleeping plain sockets, the bare fabric contract, and the whole library
//! (dispatcher, NIC threads, server). Each ratio compares rounds of the same alternation, because
//! the machine's speed seldom changes within an alternation. The table has the medians.

mod contract;
mod duel;
mod library;
mod meter;
mod plain;
mod rows;
mod table;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::Parser;
use fabric::os::affinity;
use serde::Serialize;
use serde_json::json;

use meter::Shape;
use table::Table;

const ROUND_MS: u64 = 60;

/// Compares the TCP fabric with plain sockets that do the same exchange.
#[derive(Parser)]
#[command(name = "qdl-bench", version)]
struct Args {
    /// Payload sizes of each exchange, as request:response in bytes.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "64:64,4608:3072,150528:8"
    )]
    sizes: Vec<String>,
    /// Numbers of requests in flight, each at least 1.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,256")]
    in_flight: Vec<usize>,
    /// Numbers of connections, 1 to 8.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    connections: Vec<usize>,
    /// Number of alternations of each row; every contender runs one round in each.
    #[arg(long, default_value_t = 9)]
    alternations: usize,
    /// End each round, warm-up included, after this many answers instead of 60 ms: to count
    /// instructions per sample.
    #[arg(long)]
    samples: Option<u64>,
    /// Contenders besides spinning plain sockets: sleep, fabric, qdl.
    #[arg(long, value_delimiter = ',', default_value = "sleep,fabric,qdl")]
    contenders: Vec<String>,
    /// Time to watch an idle pair of connected NIC threads, in seconds; 0 skips this part.
    #[arg(long, default_value_t = 2)]
    idle_s: u64,
    /// File for the rows as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Measures every row, prints the table as it grows, and writes the JSON.
fn main() -> Result<()> {
    let args = &Args::parse();
    let cpus = match affinity().as_slice() {
        [] => [0, 0],
        [only] => [*only, *only],
        [first, second, ..] => [*first, *second],
    };
    println!(
        "TCP on loopback, client on CPU {}, server on CPU {}; {} alternations of {ROUND_MS} ms",
        cpus[0], cpus[1], args.alternations
    );
    let table = Table::new(rows::COLUMNS);
    let mut rows = Vec::new();
    for sizes in &args.sizes {
        let (request, response) = sizes
            .split_once(':')
            .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)))
            .with_context(|| format!("--sizes {sizes}: wants request:response in bytes"))?;
        for &in_flight in &args.in_flight {
            for &connections in &args.connections {
                let shape = Shape {
                    request,
                    response,
                    in_flight,
                    connections,
                };
                anyhow::ensure!(
                    request > 0 && response > 0 && in_flight > 0 && (1..=8).contains(&connections),
                    "sizes and requests in flight are at least 1, connections 1 to 8"
                );
                let rounds =
                    duel::measure(shape, cpus, args).with_context(|| format!("{shape:?}"))?;
                let row = rows::row(shape, &rounds);
                table.row(&row);
                rows.push(row);
            }
        }
    }
    if let Some(path) = &args.json {
        write_json(path, &rows)?;
    }
    if args.idle_s > 0 {
        idle(cpus, args)?;
    }
    Ok(())
}

/// Prints the CPU time of two connected, idle NIC threads together, in percent of a core.
fn idle(cpus: [usize; 2], args: &Args) -> Result<()> {
    let percent = duel::idle_percent(cpus, args)?;
    println!("an idle pair of connected NIC threads: {percent:.2} % of a core");
    if let Some(path) = &args.json {
        let path = path.with_file_name("fabric-idle.json");
        write_json(&path, &json!({ "idle_cpu_percent": percent }))?;
    }
    Ok(())
}

fn write_json(path: &Path, results: &(impl Serialize + ?Sized)) -> Result<()> {
    let text = serde_json::to_string_pretty(results)? + "\n";
    fs::write(path, text).with_context(|| path.display().to_string())
}
