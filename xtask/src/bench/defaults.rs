//! `cargo xtask bench defaults`: compares the defaults with the best settings of a sweep, for each
//! workload, a row of the table.
//!
//! The sweep tries each key alone and keeps the best. It then adds a second and a third key while
//! each key brings 2 %. Afterwards the defaults, the best settings and a baseline take turns. The
//! baseline is LoadGen over a null SUT on another thread, or plain sockets with as many connections
//! and threads. `--programs` names a folder with `frontend`, `accelerator`, `qdl-bench` and
//! `null_sut`; nothing is built then, so a machine without cargo will do. To use only four cores:
//! `taskset -c 0-3 cargo xtask bench defaults`.

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
    pair::{Pair, RunResult, median, null_run, null_sut, write},
    table::Table,
};
use crate::{
    process::{self, read_json},
    programs,
};

/// Minimum gain for which the sweep keeps a key.
const GAIN: f64 = 1.02;
/// Maximum number of keys that the sweep combines.
const DEPTH: usize = 3;
/// First rate of a search without a known rate, and minimum rate, in queries per second.
const FIRST: f64 = 200_000.0;
const LEAST: f64 = 1000.0;
/// Assumed rate for the first Offline run, which measures the real rate.
const FIRST_OFFLINE: f64 = 10_000.0;
const BESIDE: Duration = Duration::from_secs(120);

/// Compares the default settings with the best settings and with plain sockets.
#[derive(Parser)]
#[command(name = "cargo xtask bench defaults")]
struct Args {
    /// Folder of frontend, accelerator, qdl-bench and null_sut; without it, they are built
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Number of turns; each turn measures the defaults, the best settings and plain sockets once
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// Duration of each run, in seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Skip the sweep that looks for the best settings
    #[arg(long)]
    no_sweep: bool,
    /// Rows to measure, for example server-64B-2 or offline-150528B-1; without one, all rows
    rows: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// The highest rate that LoadGen calls valid with a p99 limit of 10 ms.
    Server,
    Offline,
}

#[derive(Clone, Copy, Debug)]
struct Workload {
    scenario: Scenario,
    bytes: usize,
    /// Number of `nics` entries on either side.
    nics: usize,
    /// Connections of each NIC, if the row sets them.
    connections: Option<usize>,
}

impl Workload {
    /// The row's name: `server-64B-2`, `server-64B-1x1`.
    fn name(&self) -> String {
        let kind = format!("{:?}", self.scenario).to_lowercase();
        let each = self.connections.map(|n| format!("x{n}"));
        let each = each.unwrap_or_default();
        format!("{kind}-{}B-{}{each}", self.bytes, self.nics)
    }
}

const fn work(scenario: Scenario, bytes: usize, nics: usize) -> Workload {
    Workload {
        scenario,
        bytes,
        nics,
        connections: None,
    }
}

const WORKS: [Workload; 10] = [
    Workload {
        connections: Some(1),
        ..work(Scenario::Server, 64, 1)
    },
    work(Scenario::Server, 64, 1),
    work(Scenario::Server, 64, 2),
    work(Scenario::Server, 64, 4),
    work(Scenario::Offline, 64, 1),
    work(Scenario::Offline, 4_608, 1),
    work(Scenario::Offline, 150_528, 1),
    work(Scenario::Offline, 150_528, 2),
    work(Scenario::Offline, 150_528, 4),
    work(Scenario::Offline, 150_528, 8),
];

/// Samples in the data set: as images, they exceed any cache.
const SAMPLES: usize = 1024;

/// Folders of programs and files, and the duration of a run in seconds.
struct Setup<'a> {
    root: &'a Path,
    programs: PathBuf,
    folder: PathBuf,
    seconds: f64,
}

/// A key, its value in YAML, and the mappings that get the key.
type Key = (&'static str, &'static str, KeyScope);

/// The mappings of the configurations that get a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyScope {
    /// Each of the frontend's `nics`.
    Nic,
    /// Each of both programs' `nics`.
    BothNics,
    /// Top level of the frontend's file.
    Top,
    /// Top level of both files.
    BothTops,
}

use KeyScope::{BothNics, BothTops, Nic, Top};

/// The keys and values that the sweep tries.
const KEYS: &[Key] = &[
    ("post_from_issue_thread_up_to", "0", Nic),
    ("post_from_issue_thread_up_to", "1048576", Nic),
    ("one_by_one", "true", Top),
    ("slots", "4", Nic),
    ("slots", "16", Nic),
    ("slots", "64", Nic),
    ("slots", "256", Nic),
    ("slots", "1024", Nic),
    ("connections", "1", Nic),
    ("connections", "2", Nic),
    ("connections", "4", Nic),
    ("connections", "8", Nic),
    ("nic_threads", "1", BothTops),
    ("nic_threads", "2", BothTops),
    ("nic_threads", "4", BothTops),
    ("completion", "{mode: poll}", BothNics),
    ("completion", "{mode: event}", BothNics),
    ("completion", "{spin_us: 5}", BothNics),
    ("completion", "{spin_us: 500}", BothNics),
];

/// Settings in one line of YAML.
fn line(settings: &[&Key]) -> String {
    match settings {
        [] => "nothing".to_owned(),
        some => yaml(some, |_| true).join(", "),
    }
}

fn yaml(settings: &[&Key], is_here: impl Fn(KeyScope) -> bool) -> Vec<String> {
    let here = settings.iter().filter(|(.., scope)| is_here(*scope));
    here.map(|(name, value, _)| format!("{name}: {value}"))
        .collect()
}

struct Trial<'a> {
    pair: Pair,
    scenario: Scenario,
    bench: &'a Setup<'a>,
}

impl<'a> Trial<'a> {
    fn start(bench: &'a Setup<'_>, work: &Workload, settings: &[&Key]) -> Result<Self> {
        let folder = bench.folder.join(work.name());
        let configs = |control: &str| configs(work, settings, control);
        Ok(Trial {
            pair: Pair::start(bench.root, &bench.programs, &folder, configs)?,
            scenario: work.scenario,
            bench,
        })
    }

    /// Runs once at this rate; in Offline, with as many samples as the rate completes in the
    /// duration.
    fn run(&self, rate: f64) -> Result<RunResult> {
        let seconds = self.bench.seconds;
        let arguments = match self.scenario {
            Scenario::Server => format!(
                "--scenario server --set target_latency=10 --target-qps {rate:.0} --duration-s {seconds}"
            ),
            Scenario::Offline => {
                let samples = (rate * seconds).max(1000.0);
                format!("--scenario offline --set min_duration=0 --samples {samples:.0}")
            }
        };
        self.pair.run(&Vec::from_iter(arguments.split(' ')))
    }
}

fn configs(work: &Workload, settings: &[&Key], control: &str) -> [String; 2] {
    let (bytes, entries) = (work.bytes, work.nics);
    let is_set = settings.iter().any(|k| k.0 == "connections");
    let own = work.connections.filter(|_| !is_set);
    let near = [
        vec!["address: 127.0.0.1".to_owned()],
        Vec::from_iter(own.map(|n| format!("connections: {n}"))),
        yaml(settings, |p| matches!(p, Nic | BothNics)),
    ];
    let far = [
        vec!["listen: \"127.0.0.1:0\"".to_owned()],
        yaml(settings, |p| p == BothNics),
    ];
    let nics = |keys: &[Vec<String>]| {
        let nic = format!("{{{}}}", keys.concat().join(", "));
        vec![nic; entries].join(", ")
    };
    [
        format!(
            "node: tried\ncontrol: {{listen: \"{control}\"}}\nmemory_mib: 16384\n\
             model: {{name: tried, max_input_bytes: {bytes}}}\nengine: {{kind: \"null\"}}\n\
             nics: [{}]\n{}\n",
            nics(&far),
            yaml(settings, |p| p == BothTops).join("\n")
        ),
        format!(
            "node: trying\naccelerators: [{{control: \"{control}\"}}]\n\
             model: {{name: tried, inputs: [{{name: input, dtype: u8, shape: [{bytes}], \
             ragged: true}}], output: {{name: output, dtype: u8, shape: [8]}}}}\n\
             dataset: {{kind: random, distribution: fixed, count: {SAMPLES}}}\n\
             engine: {{kind: \"null\"}}\nnics: [{}]\n{}\n",
            nics(&near),
            yaml(settings, |p| matches!(p, Top | BothTops)).join("\n")
        ),
    ]
}

/// Prints the table as it grows and writes `target/bench/defaults.json`.
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
        None => build_programs(root)?,
    };
    let bench = Setup {
        root,
        programs,
        folder: root.join("target/bench/defaults"),
        seconds: args.seconds,
    };
    let table = Table::new(&[
        ("row", 22, "work", 0),
        ("default", 12, "default", 0),
        ("best", 12, "best", 0),
        ("ratio", 6, "ratio", 3),
        ("beside", 12, "beside", 0),
        ("default/beside", 7, "default_to_beside", 3),
        ("best settings", 0, "best_settings", 0),
    ]);
    let mut rows = Vec::new();
    let all = args.rows.is_empty();
    for work in WORKS
        .iter()
        .filter(|w| all || args.rows.contains(&w.name()))
    {
        let row = measure(&bench, work, &args).with_context(|| work.name())?;
        table.row(&row);
        rows.push(row);
        write(root, "defaults", &rows)?;
    }
    Ok(())
}

fn build_programs(root: &Path) -> Result<PathBuf> {
    let release = programs::build(root, programs::RELEASE)?;
    let null = null_sut(root)?;
    super::build_own(root)?;
    fs::copy(null, release.join("null_sut"))?;
    Ok(release)
}

/// Measures one row: the sweep, then the turns.
fn measure(bench: &Setup<'_>, work: &Workload, args: &Args) -> Result<Value> {
    let first = Trial::start(bench, work, &[])?.run(FIRST_OFFLINE)?;
    let connections = first.summary["connections"].as_array().map_or(1, Vec::len) / work.nics;
    let default = once(bench, work, &[], None, 0.0)?;
    let (mut best, mut settings) = (default, Vec::new());
    let mut no_result = Vec::new();
    for _ in 0..if args.no_sweep { 0 } else { DEPTH } {
        let mut found: Option<(f64, Vec<&Key>)> = None;
        let is_free = |key: &&Key| settings.iter().all(|k: &&Key| k.0 != key.0);
        for key in KEYS.iter().filter(is_free) {
            let tried = [&settings[..], &[key]].concat();
            let least = found.as_ref().map_or(best, |f| f.0) * GAIN;
            match once(bench, work, &tried, None, least) {
                Ok(rate) if rate > least => found = Some((rate, tried)),
                Ok(_) => {}
                // A user cannot choose settings that have no result, so skip them.
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
        // If no setting brought a gain, the defaults are the best settings.
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

/// The highest rate that holds within 5 %, searched from `first` with few runs; 0 if none holds.
fn highest(first: f64, mut held: impl FnMut(f64) -> Result<bool>) -> Result<f64> {
    let mut search = Highest {
        least: LEAST,
        step: 1.25,
        near: 1.05,
        rule: Rule::Of { hold: 1, trials: 2 },
        ..Highest::new(first)
    };
    while let Some(rate) = search.next() {
        search.tell(held(rate)?);
    }
    Ok(search.found().unwrap_or(0.0))
}

/// The rate of these settings, searched from `known` if given. Returns 0 if the rate does not
/// exceed `least`.
fn once(
    bench: &Setup<'_>,
    work: &Workload,
    settings: &[&Key],
    known: Option<f64>,
    least: f64,
) -> Result<f64> {
    let trial = Trial::start(bench, work, settings)?;
    let known = known.or(Some(least).filter(|least| *least > 0.0));
    match work.scenario {
        Scenario::Server => {
            let held = |rate| trial.run(rate).map(|r| r.valid);
            if least > 0.0 && !held(least)? && !held(least)? {
                return Ok(0.0);
            }
            highest(known.unwrap_or(FIRST), held)
        }
        Scenario::Offline => {
            let guess = known.map_or_else(|| trial.run(FIRST_OFFLINE).map(|r| r.per_s()), Ok)?;
            let first = trial.run(guess)?.per_s();
            if first <= least {
                return Ok(0.0);
            }
            Ok(first.max(trial.run(guess)?.per_s()))
        }
    }
}

/// The rate of the baseline: the null SUT on another thread, or plain sockets with `connections`
/// connections on each NIC.
fn beside(
    bench: &Setup<'_>,
    work: &Workload,
    connections: usize,
    known: Option<f64>,
) -> Result<f64> {
    let ms = format!("{:.0}", bench.seconds * 1000.0);
    if work.scenario == Scenario::Server {
        return highest(known.unwrap_or(FIRST), |rate| {
            let load = format!("--target-qps {rate:.0} --duration-ms {ms}");
            let (null, out) = (bench.programs.join("null_sut"), bench.folder.join("null"));
            null_run(&null, &Vec::from_iter(load.split(' ')), &out)
        });
    }
    let json = bench.folder.join("sockets.json");
    let mut best = 0.0_f64;
    // Take the better of a pair of threads for each NIC, and a pair for each connection. Skip the
    // second if threads share cores: a sender and a receiver on one core pass data through its
    // cache, unlike a network.
    let cores = thread::available_parallelism().map_or(2, usize::from);
    let by_connection = Some(work.nics * connections).filter(|threads| 2 * threads <= cores);
    for threads in [work.nics].into_iter().chain(by_connection) {
        for in_flight in ["4", "16", "64"] {
            let each = work.nics * connections / threads;
            let arguments = format!(
                "sockets --in-flight {in_flight} --rails {threads} --connections {each} \
                 --request {} --samples {SAMPLES} --ms {ms} --json",
                work.bytes
            );
            let mut command = Command::new(bench.programs.join("qdl-bench"));
            command.args(arguments.split(' ')).arg(&json);
            process::run_quietly("qdl-bench sockets", &mut command, BESIDE)?;
            best = best.max(read_json(&json)?["per_s"].as_f64().unwrap_or(0.0));
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_stand_where_a_user_would_write_them() {
        let connections = Some(3);
        let work = Workload {
            connections,
            ..work(Scenario::Offline, 64, 2)
        };
        let key = |name: &str| KEYS.iter().find(|k| k.0 == name).expect("a key");
        let settings = ["slots", "completion", "one_by_one", "nic_threads"].map(key);
        let [far, near] = configs(&work, &settings, "127.0.0.1:7");
        let nic = "{address: 127.0.0.1, connections: 3, slots: 4, completion: {mode: poll}}";
        assert!(near.contains(&format!("nics: [{nic}, {nic}]\n")), "{near}");
        assert!(
            near.ends_with("\none_by_one: true\nnic_threads: 1\n"),
            "{near}"
        );
        let nic = "{listen: \"127.0.0.1:0\", completion: {mode: poll}}";
        assert!(far.contains(&format!("nics: [{nic}, {nic}]\n")), "{far}");
        assert!(far.ends_with("\nnic_threads: 1\n"), "{far}");
    }
}
