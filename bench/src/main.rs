//! What `cargo xtask bench` runs: a crate of its own, so that its weight is nobody else's.
//!
//! * `fabric`: the TCP fabric beside plain sockets.
//! * `core`: the data structures that decide, in nanoseconds and allocations per operation.

mod core;
mod fabric;
mod json;
mod machine;

use alloc_count::Counting;
use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Parser)]
#[command(name = "qdl-bench", about = "Measurements of the library", version)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// The TCP fabric beside plain sockets doing the same exchange.
    Fabric(fabric::Args),
    /// Tracker, arbiter, batcher, histograms, send token: cost of an operation.
    Core(core::Args),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().bench {
        Bench::Fabric(args) => fabric::run(&args),
        Bench::Core(args) => core::run(&args),
    }
}
