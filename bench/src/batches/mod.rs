//! `batches`: which rules for batches recover from which hiccup, in a model of the engine with a
//! clock of its own, so that it says the same on any machine.
//!
//! * `model` - engines, hiccups, and a run of the real batcher over them
//! * `before` - the rules without sizes that were measured, for comparison
//! * `table` - the engines and hiccups that are compared, and what is printed

mod before;
mod model;
mod table;

use std::path::PathBuf;

use anyhow::Result;

use crate::json;

/// How `batches` is run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Seconds of each run, on the model's clock; the hiccup comes after a quarter.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// What arrivals and times vary by comes from this.
    #[arg(long, default_value_t = 15)]
    seed: u64,
    /// Where the rows go as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Prints the table, writes the JSON.
pub fn run(args: &Args) -> Result<()> {
    let rows = table::rows(args.seconds, args.seed);
    table::print(&rows);
    json::write(args.json.as_deref(), &rows)
}
