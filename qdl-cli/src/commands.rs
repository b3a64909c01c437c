//! The commands of `qdl`.

mod endpoints;
mod init;
mod token;
mod tune;

use clap::{ArgMatches, Command};
use program::cli::{self, Screen, TopologyArgs};
use qdl::topology::NodeProgram;
use submission::command::{DescribeArgs, SubmitArgs};

use frontend::{ExitCode, describe};

/// Returns the definitions of all commands.
pub fn all() -> Vec<Command> {
    let own = [
        cli::command::<init::InitArgs>("init"),
        cli::command::<token::TokenArgs>("token"),
        cli::command::<TopologyArgs>("topology"),
        cli::command::<DescribeArgs>("describe"),
        cli::command::<tune::TuneArgs>("tune"),
        cli::command::<report::ReportArgs>("report"),
        cli::command::<SubmitArgs>("submit"),
        cli::command::<endpoints::EndpointsArgs>("endpoints"),
    ];
    own.into_iter().chain(cli::common()).collect()
}

/// Runs the command `name` of [`all`]; `program` is the program that owns the command.
pub fn run(program: &Command, name: &str, matches: &ArgMatches) -> ExitCode {
    let screen: Screen = cli::arguments(matches);
    if let Some(done) = cli::run_common(program, name, matches) {
        return finish(done);
    }
    match name {
        "init" => init::command(&cli::arguments(matches), screen.quiet),
        "token" => finish(token::command(&cli::arguments(matches))),
        "topology" => finish(cli::topology(
            &cli::arguments(matches),
            NodeProgram::Frontend,
        )),
        "describe" => exit_code(describe(&cli::arguments(matches))),
        "tune" => tune::command(&cli::arguments(matches), screen.quiet),
        "report" => finish(report::command(&cli::arguments(matches), screen.quiet)),
        "endpoints" => exit_code(endpoints::command(&cli::arguments(matches))),
        _ => exit_code(submission::command::submit(
            &cli::arguments(matches),
            screen.quiet,
        )),
    }
}

fn exit_code<E: std::fmt::Display>(good: Result<bool, E>) -> ExitCode {
    match good {
        Ok(true) => ExitCode::Good,
        Ok(false) => ExitCode::Invalid,
        Err(error) => failed(error),
    }
}

/// Returns the exit code of a command, and prints its error.
fn finish<E: std::fmt::Display>(done: Result<(), E>) -> ExitCode {
    done.map_or_else(failed, |()| ExitCode::Good)
}

fn failed(error: impl std::fmt::Display) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::Setup
}
