//! The measurements of `cargo xtask bench`; a separate crate keeps its dependencies out of others.
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

use clap::{Parser, Subcommand};

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

fn main() -> anyhow::Result<()> {
    match Arguments::parse().bench {
        Bench::Fabric(args) => fabric::run(&args),
        Bench::Rails(args) => rails::run(&args),
        Bench::Sockets(args) => sockets::run(&args),
    }
}
