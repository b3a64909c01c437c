//! `cargo xtask bench defaults`: the defaults beside the best settings that a sweep finds by hand,
//! row by row of work.
//!
//! The sweep tries each key alone, keeps the best, tries the others on top of it, and goes on until
//! nothing brings 2 %. What it found and the defaults then take turns, with the bare minimum beside
//! them: LoadGen over a null SUT on another thread, or plain sockets of as many connections and
//! threads. With `--programs` nothing is built: `frontend`, `accelerator`, `qdl-bench` and
//! `null_sut`, copied with this program to a machine without cargo, are enough. On some of the
//! cores: `taskset -c 0-3 cargo xtask bench defaults`.

pub(super) mod trial;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};
use tune::highest::{Highest, Rule};

use super::{
    pair::{median, null_run, null_sut, read, write},
    table::Table,
};
use crate::{demo::programs, process};
use trial::{Bench, KEYS, Key, SAMPLES, Trial, line};

/// What a key has to bring for the sweep to keep it.
const GAIN: f64 = 1.02;
/// Keys on top of one another.
const DEPTH: usize = 3;
/// Rate at which a search begins that knows nothing, and below which none goes on.
const FIRST: f64 = 200_000.0;
const LEAST: f64 = 1000.0;
/// Rate for which the first samples of Offline are made: the run says how many the time has room
/// for.
const FIRST_OFFLINE: f64 = 10_000.0;
/// For one round of plain sockets.
const BESIDE: Duration = Duration::from_secs(120);

/// How `bench defaults` is run.
#[derive(Parser)]
#[command(name = "cargo xtask bench defaults")]
struct Args {
    /// Folder of frontend, accelerator, qdl-bench and null_sut; without it they are built
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Turns of defaults, best settings and bare minimum
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// Seconds of a run
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Leaves out the sweep
    #[arg(long)]
    no_sweep: bool,
    /// Rows, as `server-64B-2` or `offline-150528B-1`; without one all of them
    rows: Vec<String>,
}

/// How queries come, and what counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The highest rate that LoadGen calls valid with 10 ms at the 99th percentile.
    Server,
    /// Samples a second.
    Offline,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    kind: Kind,
    /// Bytes of a sample.
    bytes: usize,
    /// Entries of `nics` on either side.
    nics: usize,
    /// Connections of each, where the row sets them.
    connections: Option<usize>,
}

impl Work {
    /// `server-64B-2`, `server-64B-1x1`.
    fn name(&self) -> String {
        let kind = format!("{:?}", self.kind).to_lowercase();
        let each = self.connections.map(|n| format!("x{n}"));
        let each = each.unwrap_or_default();
        format!("{kind}-{}B-{}{each}", self.bytes, self.nics)
    }
}

const fn work(kind: Kind, bytes: usize, nics: usize, connections: Option<usize>) -> Work {
    Work {
        kind,
        bytes,
        nics,
        connections,
    }
}

/// What `bench loadgen` puts beside null SUTs.
pub(super) const LOADGEN: Work = work(Kind::Server, 64, 1, Some(1));

const WORKS: [Work; 10] = [
    LOADGEN,
    work(Kind::Server, 64, 1, None),
    work(Kind::Server, 64, 2, None),
    work(Kind::Server, 64, 4, None),
    work(Kind::Offline, 64, 1, None),
    work(Kind::Offline, 4_608, 1, None),
    work(Kind::Offline, 150_528, 1, None),
    work(Kind::Offline, 150_528, 2, None),
    work(Kind::Offline, 150_528, 4, None),
    work(Kind::Offline, 150_528, 8, None),
];

/// Prints the table as it grows and writes `target/bench/defaults.json`.
///
/// # Errors
/// A program cannot be built or started, or a run came to no result.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    let args = Args::parse_from([&["defaults".into()], args].concat());
    ensure!(args.turns > 0, "--turns is at least 1");
    let named = |name: &String| WORKS.iter().find(|w| w.name() == *name);
    if let Some(name) = args.rows.iter().find(|name| named(name).is_none()) {
        let all = WORKS.map(|w| w.name()).join(", ");
        anyhow::bail!("no row is called {name}; there are: {all}");
    }
    let programs = match &args.programs {
        Some(folder) => std::path::absolute(folder)?,
        None => built(root)?,
    };
    let bench = Bench {
        root,
        programs,
        folder: root.join("target/bench/defaults"),
        seconds: args.seconds,
    };
    let table = Table::new(&[
        ("row", 22),
        ("default", 12),
        ("best", 12),
        ("ratio", 6),
        ("beside", 12),
        ("default/beside", 7),
        ("best settings", 0),
    ]);
    let mut rows = Vec::new();
    let all = args.rows.is_empty();
    for work in WORKS
        .iter()
        .filter(|w| all || args.rows.contains(&w.name()))
    {
        let row = measure(&bench, work, &args).with_context(|| work.name())?;
        let rate = |key: &str| format!("{:.0}", row[key].as_f64().unwrap_or(0.0));
        let ratio = |key: &str| format!("{:.3}", row[key].as_f64().unwrap_or(0.0));
        table.row([
            work.name(),
            rate("default"),
            rate("best"),
            ratio("ratio"),
            rate("beside"),
            ratio("default_to_beside"),
            row["best_settings"].as_str().unwrap_or_default().to_owned(),
        ]);
        rows.push(row);
        write(root, "defaults", &rows)?;
    }
    Ok(())
}

/// Builds all programs, and puts them into one folder.
fn built(root: &Path) -> Result<PathBuf> {
    let release = programs::build(root, programs::Profile::Release)?;
    let null = null_sut(root)?;
    super::build_own(root)?;
    fs::copy(null, release.join("null_sut"))?;
    Ok(release)
}

/// One row: the sweep, then turns.
fn measure(bench: &Bench<'_>, work: &Work, args: &Args) -> Result<Value> {
    let first = Trial::start(bench, work, &[])?.run(FIRST_OFFLINE)?;
    let connections = first.summary["connections"].as_array().map_or(1, Vec::len) / work.nics;
    let default = once(bench, work, &[], None, 0.0)?;
    let (mut best, mut settings) = (default, Vec::new());
    let mut no_result = Vec::new();
    for _ in 0..if args.no_sweep { 0 } else { DEPTH } {
        let mut found: Option<(f64, Vec<&Key>)> = None;
        let is_free = |key: &&Key| settings.iter().all(|k: &&Key| k.name != key.name);
        for key in KEYS.iter().filter(is_free) {
            let tried = [&settings[..], &[key]].concat();
            let least = found.as_ref().map_or(best, |f| f.0) * GAIN;
            match once(bench, work, &tried, None, least) {
                Ok(rate) if rate > least => found = Some((rate, tried)),
                Ok(_) => {}
                // Settings that come to no result are none that anybody would choose.
                Err(error) => no_result.push(format!("{}: {error:#}", line(&tried))),
            }
        }
        match found {
            Some((rate, with)) => (best, settings) = (rate, with),
            None => break,
        }
    }
    let mut all: [Vec<f64>; 3] = Default::default();
    let mut bare = None;
    for _ in 0..args.turns {
        let ran = once(bench, work, &[], Some(default), 0.0)?;
        all[0].push(ran);
        // Where nothing that was set brought anything, the defaults are the best settings.
        all[1].push(match settings.is_empty() {
            true => ran,
            false => once(bench, work, &settings, Some(best), 0.0)?,
        });
        let ran = beside(bench, work, connections, bare)?;
        bare = Some(ran);
        all[2].push(ran);
    }
    let ratio = |to: &[f64]| {
        let mut of: Vec<f64> = all[0].iter().zip(to).map(|(a, b)| a / b).collect();
        median(&mut of)
    };
    let (ratio, to_beside) = (ratio(&all[1]), ratio(&all[2]));
    let [default, best, beside] = all.map(|mut v| median(&mut v));
    Ok(json!({
        "work": work.name(), "default": default, "best": best, "best_settings": line(&settings),
        "ratio": ratio, "beside": beside, "default_to_beside": to_beside, "no_result": no_result,
    }))
}

/// The highest rate that holds, within 5 %, begun at `first`: as few runs as will do for comparing
/// settings. 0 where none holds.
fn highest(first: f64, mut held: impl FnMut(f64) -> Result<bool>) -> Result<f64> {
    let mut search = Highest::new(first)
        .within(LEAST, f64::MAX)
        .step(1.25)
        .near(1.05)
        .rule(Rule::Of { hold: 1, trials: 2 });
    while let Some(rate) = search.next() {
        search.tell(held(rate)?);
    }
    Ok(search.found().unwrap_or(0.0))
}

/// The rate that these settings come to, `known` about; at most `least` counts as 0.
fn once(
    bench: &Bench<'_>,
    work: &Work,
    settings: &[&Key],
    known: Option<f64>,
    least: f64,
) -> Result<f64> {
    let trial = Trial::start(bench, work, settings)?;
    let known = known.or(Some(least).filter(|least| *least > 0.0));
    match work.kind {
        Kind::Server => {
            let held = |rate| trial.run(rate).map(|r| r.valid);
            if least > 0.0 && !held(least)? && !held(least)? {
                return Ok(0.0);
            }
            highest(known.unwrap_or(FIRST), held)
        }
        Kind::Offline => {
            let guess = known.map_or_else(|| trial.run(FIRST_OFFLINE).map(|r| r.per_s()), Ok)?;
            let first = trial.run(guess)?.per_s();
            if first <= least {
                return Ok(0.0);
            }
            Ok(first.max(trial.run(guess)?.per_s()))
        }
    }
}

/// What stands beside the library: the null SUT on another thread, or plain sockets with so many
/// connections on each NIC.
fn beside(bench: &Bench<'_>, work: &Work, connections: usize, known: Option<f64>) -> Result<f64> {
    if work.kind == Kind::Server {
        let ms = format!("{:.0}", bench.seconds * 1000.0);
        return highest(known.unwrap_or(FIRST), |rate| {
            let qps = format!("{rate:.0}");
            let arguments = ["--scenario", "server", "--target-qps", &qps];
            let more = ["--duration-ms", &ms, "--complete", "thread"];
            let (null, out) = (bench.programs.join("null_sut"), bench.folder.join("null"));
            null_run(&null, &[arguments, more].concat(), &out).map(|(valid, _)| valid)
        });
    }
    let json = bench.folder.join("sockets.json");
    let mut best = 0.0_f64;
    // A pair of threads for each NIC, or, as the library may have, for each connection. Not where
    // they would share cores: a sender and a receiver on one core hand over in its cache, which no
    // network does.
    let cores = thread::available_parallelism().map_or(2, usize::from);
    let by_connection = Some(work.nics * connections).filter(|threads| 2 * threads <= cores);
    for threads in [work.nics].into_iter().chain(by_connection) {
        for in_flight in ["4", "16", "64"] {
            let each = work.nics * connections / threads;
            let mut command = Command::new(bench.programs.join("qdl-bench"));
            command
                .args(["sockets", "--in-flight", in_flight])
                .args(["--rails", &threads.to_string()])
                .args(["--connections", &each.to_string()])
                .args(["--request", &work.bytes.to_string()])
                .args(["--samples", &SAMPLES.to_string()])
                .args(["--ms", &format!("{:.0}", bench.seconds * 1000.0)])
                .arg("--json")
                .arg(&json);
            process::run_quietly("qdl-bench sockets", &mut command, BESIDE)?;
            best = best.max(read(&json)?["per_s"].as_f64().unwrap_or(0.0));
        }
    }
    Ok(best)
}
