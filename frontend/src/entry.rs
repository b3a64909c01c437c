//! The program `frontend`: its command line and its process.

use std::ffi::OsString;

use clap::{Command, CommandFactory};
use program::cli::{arguments, parse, version};

use crate::{ExitCode, cli};

fn program() -> Command {
    cli::Args::command()
        .version(version())
        .subcommand_negates_reqs(true)
        .subcommands(program::cli::common())
}

/// Runs the program with these arguments, of which the first is its name, and ends the process.
pub fn main(given: impl Iterator<Item = OsString>) -> ! {
    program::begin();
    engines::begin();
    crate::run::interrupt::listen();
    let program = program();
    let matches = parse(&program, given);
    if let Some((name, matches)) = matches.subcommand() {
        let done = program::cli::run_common(&program, name, matches).unwrap_or(Ok(()));
        let code = done.map_or_else(
            |error| {
                eprintln!("error: {error}");
                ExitCode::Setup
            },
            |()| ExitCode::Good,
        );
        std::process::exit(i32::from(code.code()));
    }
    let args: cli::Args = arguments(&matches);
    args.screen.log(tracing::Level::WARN);
    let code = crate::run(&args).unwrap_or_else(|error| {
        crate::run::progress::say(&format!("error: {error}"));
        ExitCode::Setup
    });
    disk::sweep();
    // Skip LoadGen's destructors: an aborted test leaves threads that still use its memory.
    loadgen_bridge::exit(i32::from(code.code()))
}
