//! The program `accelerator --config A.yaml`, a node of the system under test: its command line and
//! its process.

use std::{
    ffi::OsString,
    io::Write,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use clap::{ArgMatches, Command, CommandFactory, Parser};
use engines::pipeline::WarmUp;
use machine::{DescribeArgs, Role};
use program::{
    cli::{self, Screen},
    signals,
};
use qdl::{run::Stop, topology::NodeProgram};

use crate::node::Accelerator;

const OK: u8 = 0;
/// The setup failed (configuration, model or port): nothing was served.
const SETUP: u8 = 2;
/// The engine failed during a run.
const ENGINE: u8 = 3;
/// After a session, the accelerator's counts contradict each other.
const MISMATCH: u8 = 4;

/// The exit codes in `--help`; a test compares this text with the manual.
const EXIT_CODES: &str = "\
Exit codes:
  0  stopped by SIGINT or SIGTERM, done with its frontend (--once), or nothing wrong (--check)
  2  usage, configuration, model, engine, or a port that is taken
  3  the engine failed in mid-run
  4  after a session the counts did not agree";

/// Runs an accelerator, a node of the system under test: receives samples from a frontend over the
/// network, runs them in batches, and sends the answers.
///
/// The accelerator serves one frontend at a time; when that frontend leaves, it accepts the next
/// one. SIGTERM and SIGINT end the accelerator.
///
/// `qdl init` writes a configuration for your model.
#[derive(Parser)]
#[command(name = "accelerator", after_help = EXIT_CODES, max_term_width = 100)]
struct Arguments {
    /// Configuration of this accelerator, a YAML file, for example configs/demo/accelerator.yaml.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Load the model, open all ports and devices, print the resulting node and its resources, and
    /// end without serving.
    #[arg(long, conflicts_with = "once")]
    check: bool,
    /// Serve one frontend, then end.
    #[arg(long)]
    once: bool,
    /// With --check: print the result as JSON.
    #[arg(long, requires = "check")]
    json: bool,
    #[command(flatten)]
    screen: Screen,
}

fn run(program: &Command, name: &str, matches: &ArgMatches) -> u8 {
    if let Some(done) = cli::run_common(program, name, matches) {
        return done.map_or_else(failed, |()| OK);
    }
    match name {
        "topology" => cli::topology(&cli::arguments(matches), NodeProgram::Accelerator)
            .map_or_else(failed, |()| OK),
        _ => {
            let args: DescribeArgs = cli::arguments(matches);
            args.describe(Role::Accelerator, env!("CARGO_PKG_VERSION"))
                .and_then(|text| args.write(&text))
                .map_or_else(failed, |()| OK)
        }
    }
}

fn failed(error: impl std::fmt::Display) -> u8 {
    eprintln!("error: {error}");
    SETUP
}

fn program() -> Command {
    Arguments::command()
        .version(cli::version())
        .subcommand_negates_reqs(true)
        .subcommand(cli::command::<cli::TopologyArgs>("topology"))
        .subcommand(cli::command::<DescribeArgs>("describe"))
        .subcommands(cli::common())
}

/// Runs the program with these arguments, of which the first is its name, and ends the process.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ! {
    program::begin();
    engines::begin();
    // Block the signals before any thread starts: each thread inherits the mask, and one waits.
    let signals = signals::block();
    let program = program();
    let matches = cli::parse(&program, arguments);
    if let Some((name, matches)) = matches.subcommand() {
        // The signals keep their default, which ends the process.
        signals.unblock();
        cli::arguments::<Screen>(matches).log(tracing::Level::INFO);
        std::process::exit(i32::from(run(&program, name, matches)));
    }
    let arguments: Arguments = cli::arguments(&matches);
    arguments.screen.log(tracing::Level::INFO);
    let code = serve(&arguments, signals);
    let _ = std::io::stdout().flush();
    disk::sweep();
    // After an engine failure, threads may still run in libraries whose destructors would then
    // crash. SAFETY: `_exit` ends the process without destructors; the system closes all files.
    unsafe { libc::_exit(i32::from(code)) }
}

fn serve(arguments: &Arguments, signals: signals::Blocked) -> u8 {
    let stopper: Arc<OnceLock<Stop>> = Arc::default();
    let stop = stopper.clone();
    std::thread::spawn(move || {
        let signal = signals.wait();
        let why = format!("the accelerator was told to stop (signal {signal})");
        match stop.get() {
            Some(stop) => stop.stop(&why),
            None => {
                eprintln!("{why} before it was ready");
                disk::sweep();
                // SAFETY: `_exit` only ends the process; nothing is served yet.
                unsafe { libc::_exit(i32::from(OK)) }
            }
        }
    });
    let (mut config, mut engine) = match engines::config::load_accelerator(&arguments.config) {
        Ok(read) => read,
        Err(e) => return failed(e),
    };
    if arguments.check
        && let Some(http) = &mut engine.http
        && http.command.is_empty()
    {
        // A check does not wait for a server that the user has to start.
        http.ready_s = 1;
    }
    match qdl::topology::spell_out(&config.nics, true) {
        Ok(nics) => config.nics = nics.into_iter().map(|(_, nic)| nic).collect(),
        Err(e) => return failed(e),
    }
    for warning in qdl::topology::pinning_warnings(&config.nics) {
        tracing::warn!("{warning}");
    }
    // A frontend that asks for the configuration gets the text that the file has now.
    let text = std::fs::read_to_string(&arguments.config).unwrap_or_default();
    let accelerator = match Accelerator::start(&config, &engine, &text, arguments.once) {
        Ok(a) => a,
        Err(e) => return failed(e),
    };
    if arguments.check {
        let page = crate::check::page(&config, &engine, &accelerator);
        page.print(arguments.json, arguments.screen.quiet);
        return OK;
    }
    let _ = stopper.set(accelerator.stopper());
    if let Some(line) = &accelerator.content {
        tracing::info!("{line}");
    }
    tracing::info!("engine {}", accelerator.engine);
    if let Some(WarmUp { cold_us, warm_us }) = accelerator.pipelines.warm_up() {
        let [cold, warm] = [cold_us, warm_us].map(|us| view::time_us(us as f64));
        tracing::info!("engine warmed up: {cold} for the first sample, {warm} warm");
    }
    if let Some((ms, sequences)) = accelerator.pipelines.sequences() {
        tracing::info!("engine started in {ms} ms: up to {sequences} sequences at once");
    }
    println!("{}", accelerator.ready_line);
    let mut code = OK;
    let ended = accelerator.run(&mut |report| {
        if !arguments.screen.quiet {
            // The reader of a pipe may be gone.
            let _ = write!(std::io::stdout(), "{}", crate::served::served(report));
        }
        for mismatch in &report.mismatches {
            eprintln!("error: counts do not agree: {mismatch}");
            code = MISMATCH;
        }
    });
    match ended {
        None => code,
        Some(why) => {
            eprintln!("error: {why}");
            ENGINE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_codes_are_those_of_the_manual() {
        let text = include_str!("../../README.md").replace('`', "");
        let (_, table) = text
            .split_once("| accelerator | meaning |")
            .expect("a table");
        let rows = table.lines().skip(2).map_while(|l| l.strip_prefix("| "));
        let rows: Vec<_> = rows
            .map(|row| row.trim_end_matches(" |").replacen(" |", "", 1))
            .collect();
        let words: Vec<_> = EXIT_CODES.split_whitespace().collect();
        assert_eq!(words.join(" "), format!("Exit codes: {}", rows.join(" ")));
        for code in [OK, SETUP, ENGINE, MISMATCH] {
            assert!(
                rows.iter().any(|row| row.starts_with(&format!("{code} "))),
                "{code} is missing"
            );
        }
    }
}
