//! `core`: the data structures that decide, on one thread, in nanoseconds and allocations per
//! operation, at 8 to 8,192 in flight and 1 to 64 connections.
//!
//! Each cell is measured many times in short turns, all cells in each turn, and its best time is
//! kept: work that has nothing to wait for is only ever made slower by the rest of the machine.
//! Allocations are counted over all turns, from the moment the structure has been made.

mod ops;
mod table;

use std::path::PathBuf;

use anyhow::{Context, Result};
use qdl::clock::now_ns;

use crate::{json, machine};
use ops::{Op, Operation};

/// How `core` is run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Samples in flight over all connections.
    #[arg(long, value_delimiter = ',', default_value = "8,64,512,4096,8192")]
    in_flight: Vec<usize>,
    /// Connections; those that do not divide 8,192 are left out.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    connections: Vec<usize>,
    /// Which operations; all unless given.
    #[arg(long, value_delimiter = ',')]
    ops: Vec<String>,
    /// Turns of each cell.
    #[arg(long, default_value_t = 60)]
    turns: usize,
    /// Operations in a turn.
    #[arg(long, default_value_t = 20_000)]
    per_turn: usize,
    /// The CPU it runs on; the first allowed one unless given.
    #[arg(long)]
    cpu: Option<usize>,
    /// Where the rows go as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One cell under measurement.
struct Cell {
    operation: Operation,
    connections: usize,
    in_flight: usize,
    op: Box<dyn Op>,
    best_ns: f64,
    allocations: u64,
}

/// Measures every cell, prints the table, writes the JSON.
pub fn run(args: &Args) -> Result<()> {
    let cpu = args.cpu.unwrap_or(machine::two_cpus()[0]);
    machine::pin(cpu).with_context(|| format!("pin to CPU {cpu}"))?;
    let mut rows = Vec::new();
    println!("{}", table::head(&args.in_flight));
    for operation in Operation::ALL {
        if !args.ops.is_empty() && !args.ops.iter().any(|o| o == operation.key()) {
            continue;
        }
        for &connections in &args.connections {
            anyhow::ensure!(
                connections.is_power_of_two() && connections <= 64,
                "--connections {connections}: wants a power of two up to 64"
            );
            let cells = measure(operation, connections, args);
            let row = table::row(&cells);
            println!("{}", row.line());
            rows.push(row);
        }
    }
    json::write(args.json.as_deref(), &rows)?;
    table::verdict(&rows);
    Ok(())
}

fn measure(operation: Operation, connections: usize, args: &Args) -> Vec<Cell> {
    let mut cells: Vec<_> = args
        .in_flight
        .iter()
        .map(|&in_flight| Cell {
            operation,
            connections,
            in_flight,
            op: operation.make(connections, in_flight.clamp(1, 8192)),
            best_ns: f64::INFINITY,
            allocations: 0,
        })
        .collect();
    for _ in 0..args.turns {
        for c in &mut cells {
            let asked = alloc_count::of_process();
            // Brings its memory into the cache: cells share it.
            c.op.run(8192);
            let begin = now_ns();
            c.op.run(args.per_turn);
            let took = now_ns() - begin;
            c.allocations += alloc_count::of_process() - asked;
            c.best_ns = c.best_ns.min(took as f64 / args.per_turn as f64);
        }
    }
    cells
}
