//! `frontend --config F.yaml`: LoadGen on one side, the
//! network (or, with `--local`, an engine) on the other.
//!
//! | file | what it is for |
//! | --- | --- |
//! | `cli`, `settings` | the command line, and what LoadGen is told in the end |
//! | `provenance`, `own_settings` | where LoadGen's settings, and this node's own, came from |
//! | `dataset`, `qsl` | samples, and LoadGen's library of them in the memory they are sent from |
//! | `sut`, `backend` | LoadGen's system under test, over whatever stands behind it |
//! | `network`, `local` | behind it: a cluster of accelerators, or an engine in this process |
//! | `completer`, `verify` | responses back to LoadGen, compared with their samples if asked |
//! | `tokens` | answers in tokens: who counts them, and what is wrong with them |
//! | `run` | a run from beginning to end |
//! | `progress`, `watchdog`, `interrupt`, `memory` | what is watched meanwhile |
//! | `phases` | histograms for each of LoadGen's phases |
//! | `result`, `reasons` | what it came to in LoadGen's words, and why it is not valid |
//! | `accuracy`, `report`, `exit` | what it came to |
//! | `guard`, `left` | whether a run would count in a submission; what else one is made of |

mod accuracy;
mod backend;
mod cli;
mod completer;
mod dataset;
mod exit;
mod guard;
mod interrupt;
mod left;
mod local;
mod memory;
mod network;
mod own_settings;
mod phases;
mod progress;
mod provenance;
mod qsl;
mod reasons;
mod report;
mod result;
mod run;
mod settings;
mod sut;
mod tokens;
mod verify;
mod warm_up;
mod watchdog;

use clap::Parser;

use exit::ExitCode;

/// LoadGen allocates for every query: this one makes it half as fast again.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// `frontend topology`.
fn topology() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != "topology" {
        return None;
    }
    Some(
        match qdl::topology::command(qdl::topology::Node::Frontend, words) {
            Ok(text) => {
                // Nobody may be reading any more.
                let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
                ExitCode::Good
            }
            Err(e) => {
                eprintln!("error: {e}");
                ExitCode::Setup
            }
        },
    )
}

/// `frontend submit` and `frontend describe`.
fn submission() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    let outcome = match words.next()?.to_str()? {
        "submit" => submission::command::submit(words),
        "describe" => submission::command::describe("frontend", env!("CARGO_PKG_VERSION"), words),
        _ => return None,
    };
    Some(match outcome {
        submission::command::Outcome::Good => ExitCode::Good,
        submission::command::Outcome::Findings => ExitCode::Invalid,
        submission::command::Outcome::Setup => ExitCode::Setup,
    })
}

fn main() {
    accelerator::engine::tensorrt::build_if_asked();
    if let Some(code) = topology().or_else(submission) {
        std::process::exit(i32::from(code.code()));
    }
    let args = cli::Args::parse();
    let level = match (args.quiet, args.verbose) {
        (true, _) => tracing::Level::ERROR,
        (false, 0) => tracing::Level::WARN,
        (false, 1) => tracing::Level::DEBUG,
        (false, _) => tracing::Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    let code = run::run(&args).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::Setup
    });
    // An aborted test leaves threads in LoadGen; its destructors would pull their memory away.
    loadgen_bridge::exit(i32::from(code.code()))
}
