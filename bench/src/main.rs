//! What `cargo xtask bench` runs: a crate of its own, so that no other crate carries its weight.
//!
//! * `fabric`: the TCP fabric beside plain sockets.
//! * `core`: the data structures that decide, in nanoseconds and allocations per operation.
//! * `rails`: the policies that choose rails, in a model.
//! * `sockets`: plain sockets alone, over several rails.
//! * `large`: ways of the kernel to move large payloads.
//! * `parts`: answers in parts beside plain sockets.
//! * `feed`: LoadGen in front and stubbed NICs behind (with the feature of that name).
//! * `models`: the round's models with the engine `digest`, both programs beside plain sockets
//!   (with the feature `feed`).
//! * `llm-server`: a pretended language-model server for `bench llm`.

mod core;
mod fabric;
#[cfg(feature = "feed")]
mod feed;
mod json;
mod large;
mod llm;
mod loopback;
mod machine;
#[cfg(feature = "feed")]
mod models;
mod parts;
mod rails;
mod sockets;

use alloc_count::Counting;
use clap::{Parser, Subcommand};
// LoadGen has the allocator that it has in the frontend: whoever links it has it everywhere.
#[cfg(feature = "feed")]
use tikv_jemallocator as _;

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
    /// Rails chosen by health: a model of a large system, the cost of a decision, and designs.
    Rails(rails::Args),
    /// Plain sockets alone, over several rails with a thread each.
    Sockets(sockets::Args),
    /// Large payloads: sendmsg, MSG_ZEROCOPY and io_uring in turns.
    Large(large::Args),
    /// Answers that grow token by token, in parts of the TCP fabric and over plain sockets.
    Parts(parts::Args),
    /// What a frontend's software can feed to 1 to 32 stubbed NICs, with LoadGen in front.
    #[cfg(feature = "feed")]
    Feed(feed::Args),
    /// The round's models with the engine `digest`, both programs beside plain sockets.
    #[cfg(feature = "feed")]
    Models(models::Args),
    /// The far end of the plain sockets of `models`.
    #[cfg(feature = "feed")]
    #[command(hide = true)]
    ModelsPeer(models::PeerArgs),
    /// A pretended language-model server; serves until it is killed.
    LlmServer(llm::Args),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().bench {
        Bench::Fabric(args) => fabric::run(&args),
        Bench::Core(args) => core::run(&args),
        Bench::Rails(args) => rails::run(&args),
        Bench::Sockets(args) => sockets::run(&args),
        Bench::Large(args) => large::run(&args),
        Bench::Parts(args) => parts::run(&args),
        #[cfg(feature = "feed")]
        Bench::Feed(args) => feed::run(&args),
        #[cfg(feature = "feed")]
        Bench::Models(args) => models::run(&args),
        #[cfg(feature = "feed")]
        Bench::ModelsPeer(args) => models::peer(&args),
        Bench::LlmServer(args) => llm::run(&args),
    }
}
