//! `feed`: how many samples a frontend's software can post, take back and record, with LoadGen in
//! front and 1 to 32 NICs that cost nothing behind.
//!
//! ```text
//!   LoadGen --> bridge, SUT, dispatcher, `ib` fabric --> post_send of a stubbed provider
//!                                                                 |  the far end is played there:
//!   LoadGen <-- completer, histograms, NIC threads  <-- poll_cq <-+  a null engine's response
//! ```
//!
//! Everything above the provider is the frontend's own code with its default configuration, but for
//! the control session: nobody has to be asked for connections. Payloads are named by their address
//! and never read, as a NIC would read them. What the stub takes of itself is measured beside.
//!
//! LoadGen runs once in a process, so each run is this program again (`run`); `plan` says which
//! runs there are, `table` what is printed of them.

mod cpu;
mod far;
mod plan;
mod readings;
mod run;
mod table;

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

pub use run::Row;

use crate::json;

/// How queries come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// One query of all samples.
    Offline,
    /// One sample a query, as fast as LoadGen's issue thread can.
    Server,
    /// The same, where LoadGen puts queries together whose time has passed.
    Coalesced,
}

/// How `feed` is run.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// How queries come.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "offline,server,coalesced"
    )]
    scenarios: Vec<Scenario>,
    /// Numbers of NICs, 1 to 64.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32")]
    nics: Vec<usize>,
    /// Cores, the first so many of those this program may run on; default 1, 2, 4 and so on up to
    /// all of them for 8 and 32 NICs, all of them for the others.
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Bytes of a sample.
    #[arg(long, default_value_t = 150_528)]
    bytes: usize,
    /// Bytes of a response.
    #[arg(long, default_value_t = 8)]
    response: usize,
    /// Microseconds from a doorbell to its answers.
    #[arg(long, default_value_t = 10)]
    round_trip_us: u64,
    /// Threads that issue in Server; 0 is LoadGen's own one.
    #[arg(long, default_value_t = 0)]
    issue_threads: u64,
    /// Seconds of a run.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Runs of each cell; their median counts.
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// More of each NIC's entry in the frontend's configuration, as `queue_pairs: 2, slots: 64`.
    #[arg(long, default_value = "")]
    nic: String,
    /// More of the frontend's configuration, as `doorbell_wait_us: 0`.
    #[arg(long, default_value = "")]
    config: String,
    /// Counts instructions a sample as well, with valgrind.
    #[arg(long)]
    instructions: bool,
    /// Where the rows go as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// One run of so many samples with the first of each list; prints its row as JSON.
    #[arg(long, hide = true)]
    one: Option<u64>,
}

/// Measures every cell, prints the tables, writes the JSON.
pub fn run(args: &Args) -> Result<()> {
    if let Some(samples) = args.one {
        let row = run::one(args, samples)?;
        println!("{}", serde_json::to_string(&row).context("a row as JSON")?);
        return Ok(());
    }
    let results = plan::run(args, |so_far| json::write(args.json.as_deref(), so_far))?;
    table::print(&results);
    json::write(args.json.as_deref(), &results)
}
