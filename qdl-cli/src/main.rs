//! The program `qdl`: the commands around a run. Under the name `frontend` or `accelerator`, or
//! with such a first argument, it is that program: a package has one file for all three.

mod commands;
mod demo;

use std::{
    env,
    ffi::{OsStr, OsString},
    path::Path,
    process,
};

use clap::{Command, Parser};
use program::cli::{Screen, arguments, command, parse, version};

#[global_allocator]
static ALLOCATOR: program::Allocator = program::Allocator;

/// The end of `--help`.
const NODES: &str = "\
`qdl frontend`, `qdl accelerator` and `qdl gateway` are the programs of a node: a run of LoadGen,
the engines, and OpenAI's HTTP API in front of accelerators. Each has its own --help.";

/// Commands around runs of `frontend` and `accelerator`: write configurations, find the highest
/// rate, draw pages, build a submission.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "qdl",
    max_term_width = 100,
    after_help = NODES,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Args {
    #[command(flatten)]
    screen: Screen,
}

fn program() -> Command {
    let about = "Runs digits, or a small language model, over TCP on loopback";
    let demo = command::<demo::DemoArgs>("demo").about(about);
    command::<Args>("qdl")
        .version(version())
        .subcommands(commands::all())
        .subcommand(demo)
}

/// Becomes the program of this name, unless it is another name.
fn become_program(name: &OsStr, arguments: &[OsString]) {
    match name.to_str() {
        Some("frontend") => frontend::entry::main(arguments.iter().cloned()),
        Some("accelerator") => accelerator::entry::main(arguments.iter().cloned()),
        Some("gateway") => gateway::entry::main(arguments.iter().cloned()),
        _ => {}
    }
}

fn main() {
    program::begin();
    engines::begin();
    let given: Vec<OsString> = env::args_os().collect();
    if let Some(name) = given.first().and_then(|path| Path::new(path).file_name()) {
        become_program(name, &given);
    }
    if let Some(name) = given.get(1) {
        become_program(name, &given[1..]);
    }
    frontend::interrupt::listen();
    let program = program();
    let matches = parse(&program, given.into_iter());
    // Unreachable: clap requires a command.
    let Some((name, matches)) = matches.subcommand() else {
        return;
    };
    let screen: Screen = arguments(matches);
    screen.log(tracing::Level::WARN);
    let code = match name {
        "demo" => demo::command(&arguments(matches)),
        _ => i32::from(commands::run(&program, name, matches).code()),
    };
    process::exit(code);
}
