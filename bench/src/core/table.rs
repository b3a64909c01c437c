//! Rows: one operation at one number of connections, across what is in flight.

use serde::Serialize;

use super::Cell;

/// Cost may grow by this much from the fewest to the most in flight.
const FLAT_WITHIN: f64 = 1.2;

/// One figure of a row.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct At {
    in_flight: usize,
    ns: f64,
    /// Allocations over all that was measured, not per operation: one is too many.
    allocations: u64,
}

/// One row of `target/bench/core.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    operation: &'static str,
    connections: usize,
    at: Vec<At>,
    /// The dearest over the cheapest.
    spread: f64,
}

/// The table's head.
pub fn head(in_flight: &[usize]) -> String {
    let columns: String = in_flight.iter().map(|n| format!("{n:>9}")).collect();
    format!(
        "{:<18}{:>6}{columns}  in flight, ns per operation; spread, allocations",
        "operation", "conns"
    )
}

/// Makes a row.
pub fn row(cells: &[Cell]) -> Row {
    let at: Vec<_> = cells
        .iter()
        .map(|c| At {
            in_flight: c.in_flight,
            ns: (c.best_ns * 100.0).round() / 100.0,
            allocations: c.allocations,
        })
        .collect();
    let max = at.iter().map(|a| a.ns).fold(0.0, f64::max);
    let min = at.iter().map(|a| a.ns).fold(f64::INFINITY, f64::min);
    Row {
        operation: cells.first().map_or("", |c| c.operation.key()),
        connections: cells.first().map_or(0, |c| c.connections),
        at,
        spread: (max / min * 100.0).round() / 100.0,
    }
}

impl Row {
    /// One line of the table.
    pub fn line(&self) -> String {
        let columns: String = self.at.iter().map(|a| format!("{:>9.1}", a.ns)).collect();
        format!(
            "{:<18}{:>6}{columns}  {:.2}, {}",
            self.operation,
            self.connections,
            self.spread,
            self.allocations()
        )
    }

    fn allocations(&self) -> u64 {
        self.at.iter().map(|a| a.allocations).sum()
    }
}

/// Says which rows are neither flat nor free of allocations.
pub fn verdict(rows: &[Row]) {
    let mut short = 0;
    for r in rows {
        if r.spread > FLAT_WITHIN || r.allocations() > 0 {
            short += 1;
            println!(
                "SHORT {} over {} connections: spread {:.2} (at most {FLAT_WITHIN} wanted), {} allocations (0 wanted)",
                r.operation,
                r.connections,
                r.spread,
                r.allocations()
            );
        }
    }
    if short == 0 {
        println!("met   every row is flat within {FLAT_WITHIN} times and allocates nothing");
    }
}
