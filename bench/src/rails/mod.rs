//! `rails`: how the policies that choose rails by health fare in a model of a large system, what a
//! decision costs, and rail-only beside rail-optimised delivery.
//!
//! * `sim`: the model, which drives `qdl::rails` with a clock of its own.
//! * `decision`: nanoseconds and allocations of a decision.
//! * `algebra`: paths and their scores, wider than what a run needs.
//! * `design`: for which health a spine above the rails is worth having.

mod algebra;
mod decision;
mod design;
mod sim;

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;

use crate::json;

/// How `rails` is run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Makes every run of the model so many times shorter.
    #[arg(long, default_value_t = 1)]
    shorten: u64,
    /// Where everything goes as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Output {
    tables: Vec<sim::Report>,
    decisions: Vec<decision::Decision>,
    designs: Vec<design::Row>,
}

/// Runs the model, measures decisions, compares the designs; prints tables, writes the JSON.
pub fn run(args: &Args) -> Result<()> {
    let mut tables = Vec::new();
    for rails in [8, 64, 256] {
        tables.push(sim::congestion_table(rails, args.shorten)?);
        println!("{}", tables[tables.len() - 1].render());
    }
    tables.push(sim::entropy_table(64, args.shorten)?);
    println!("{}", tables[tables.len() - 1].render());
    let decisions = decision::measure()?;
    let designs = design::rows();
    println!("\n{}", design::render(&designs));
    let output = Output {
        tables,
        decisions,
        designs,
    };
    json::write(args.json.as_deref(), &output)
}
