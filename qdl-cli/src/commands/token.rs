//! `qdl token`: makes a token.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use clap::Parser;
use qdl::control::Token;

/// Makes a token, 32 random bytes in hexadecimal digits: for `token_file`, the same on every node
/// of a run, or for `metrics_token_file`
#[derive(Clone, Debug, Parser)]
pub struct TokenArgs {
    /// Write the token to a new file that only its owner can read [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Runs the command.
/// Error: the system has no random bytes, or the file exists or cannot be written.
pub fn command(args: &TokenArgs) -> io::Result<()> {
    let token = Token::random()?;
    match &args.output {
        None => writeln!(io::stdout(), "{}", token.to_digits()),
        Some(path) => token
            .write_new(path)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display()))),
    }
}
