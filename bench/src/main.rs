//! The measurements of `cargo xtask bench`, in a separate crate with its own dependencies.
//!
//! * `fabric`: the TCP fabric beside plain sockets.
//! * `rails`: the policies that choose rails, in a model.
//! * `sockets`: plain sockets alone, over several rails.

mod fabric;
mod loopback;
mod machine;
mod rails;
mod sockets;
mod table;

use std::{fs, path::Path};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use serde::Serialize;

#[derive(Parser)]
#[command(name = "qdl-bench", about = "Measurements of the library", version)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Compare the TCP fabric with plain sockets that do the same exchange.
    Fabric(fabric::Args),
    /// Compare policies that choose rails, in a model of a large system.
    Rails(rails::Args),
    /// Measure plain sockets alone, over several rails with one thread per end.
    Sockets(sockets::Args),
}

fn main() -> Result<()> {
    match Arguments::parse().bench {
        Bench::Fabric(args) => fabric::run(&args),
        Bench::Rails(args) => rails::run(&args),
        Bench::Sockets(args) => sockets::run(&args),
    }
}

fn write_json(path: &Path, results: &(impl Serialize + ?Sized)) -> Result<()> {
    let text = serde_json::to_string_pretty(results)? + "\n";
    fs::write(path, text).with_context(|| path.display().to_string())
}
