//! The program `qdl`: the commands around a run.

use std::{env, os::unix::process::CommandExt, path::Path, process};

use accelerator::cli::{Screen, arguments, command, parse, version};
use clap::{Command, Parser};
use frontend::{ExitCode, commands};

/// Commands around runs of `frontend` and `accelerator`: write configurations, find the highest
/// rate, draw pages, build a submission.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "qdl",
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Args {
    #[command(flatten)]
    screen: Screen,
}

/// Runs digits over TCP on loopback, in a checkout: accuracy compared with --local, then Server and
/// Offline. The first call fetches and builds what the demo needs.
#[derive(Clone, Debug, Parser)]
struct DemoArgs {
    /// Run a small language model instead of the digits
    #[arg(long)]
    llm: bool,
}

/// Replaces this process with `cargo xtask demo`; returns only an error.
fn demo(args: &DemoArgs) -> anyhow::Error {
    let Ok(here) = env::current_dir() else {
        return anyhow::anyhow!("this folder is no more");
    };
    let is_checkout = |folder: &&Path| folder.join("configs/demo/frontend.yaml").exists();
    let Some(root) = here.ancestors().find(is_checkout) else {
        let here = here.display();
        return anyhow::anyhow!("{here} is in no checkout of this project: run it in one");
    };
    let mut cargo = process::Command::new("cargo");
    cargo.current_dir(root).args(["xtask", "demo"]);
    cargo.args(args.llm.then_some("--llm"));
    anyhow::Error::from(cargo.exec()).context("cargo xtask demo")
}

fn program() -> Command {
    let about = "Run digits, or a small language model, over TCP on loopback; needs a checkout";
    let demo = command::<DemoArgs>("demo").about(about);
    command::<Args>("qdl")
        .version(version())
        .subcommands(commands::all())
        .subcommand(demo)
}

fn main() {
    let program = program();
    let matches = parse(&program);
    // Unreachable: clap requires a command.
    let Some((name, matches)) = matches.subcommand() else {
        return;
    };
    arguments::<Screen>(matches).log(tracing::Level::WARN);
    let code = match name {
        "demo" => {
            eprintln!("error: {:#}", demo(&arguments(matches)));
            ExitCode::Setup
        }
        _ => commands::run(&program, name, matches),
    };
    process::exit(i32::from(code.code()));
}
