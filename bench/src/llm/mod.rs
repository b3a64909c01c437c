//! A pretended language-model server, for measurements that need one that costs next to nothing:
//! the frontend's way to it, and a Python SUT's, are what is measured.

mod http;
mod server;

use std::net::SocketAddr;

use clap::Args as ClapArgs;

/// How it pretends.
#[derive(ClapArgs, Clone, Debug)]
pub struct Args {
    /// Where it listens; port 0 takes one that is free. The address is the first line it prints.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Milliseconds from a request to its first token.
    #[arg(long, default_value_t = 5.0)]
    first_ms: f64,
    /// Milliseconds between two tokens.
    #[arg(long, default_value_t = 1.0)]
    step_ms: f64,
    /// Ids of the vocabulary.
    #[arg(long, default_value_t = 32_000)]
    vocab: u32,
    /// Tokens of prompt and answer together.
    #[arg(long, default_value_t = 8192)]
    context: u32,
}

/// Serves until it is killed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(server::serve(args))
}
