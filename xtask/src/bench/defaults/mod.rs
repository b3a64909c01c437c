//! `cargo xtask bench defaults`: the defaults beside the best settings that a sweep finds by hand,
//! row by row of work.
//!
//! Arguments: `[--programs FOLDER] [--turns N] [--seconds S] [--cores N]
//! [--no-sweep] [WORK ...]`; without the sweep the defaults stand beside the bare minimum alone.
//!
//! The sweep tries each key alone, keeps the best, tries the others on top of it, and goes on until
//! nothing brings 2 %. What it found and the defaults then take turns, with the bare minimum beside
//! them: LoadGen over a null SUT on another thread, or plain sockets of as many connections and
//! threads. With `--programs` nothing is built: `frontend`, `accelerator`, `qdl-bench` and
//! `null_sut`, copied with this program to a machine without cargo, are enough.

mod climb;
mod trial;
mod works;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{iter, thread, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    loadgen::{null_run, null_sut},
    pair::{median, write},
};
use crate::{demo::programs, process};
use climb::climb;
use trial::{Bench, Ran, SAMPLES, Trial, read};
use works::{KEYS, Kind, Settings, WORKS, Work};

/// What a key has to bring for the sweep to keep it.
const GAIN: f64 = 1.02;
/// Keys on top of one another.
const DEPTH: usize = 3;
/// Where searches begin.
const FIRST: f64 = 200_000.0;
/// Rates that runs of a known setting are given: above what it does, as Offline's samples are made
/// for a time.
const FIRST_OFFLINE: f64 = 10_000.0;
/// For one round of plain sockets, and for one run of the null SUT.
const BESIDE: Duration = Duration::from_secs(120);

/// What is asked for.
struct Asked {
    programs: Option<PathBuf>,
    turns: usize,
    seconds: f64,
    cores: Option<usize>,
    sweep: bool,
    works: Vec<Work>,
}

impl Asked {
    fn of(args: &[OsString]) -> Result<Self> {
        let mut asked = Asked {
            programs: None,
            turns: 3,
            seconds: 1.0,
            cores: None,
            sweep: true,
            works: Vec::new(),
        };
        let mut words = args.iter().map(|a| a.to_string_lossy().into_owned());
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .with_context(|| format!("{word} takes a value"))
            };
            match word.as_str() {
                "--programs" => asked.programs = Some(value()?.into()),
                "--turns" => asked.turns = value()?.parse().context("--turns")?,
                "--seconds" => asked.seconds = value()?.parse().context("--seconds")?,
                "--no-sweep" => asked.sweep = false,
                "--cores" => asked.cores = Some(value()?.parse().context("--cores")?),
                name => match WORKS.iter().find(|w| w.name() == name) {
                    Some(work) => asked.works.push(*work),
                    None => {
                        let all: Vec<_> = WORKS.iter().map(Work::name).collect();
                        bail!("no work is called {name}; there are: {}", all.join(", "));
                    }
                },
            }
        }
        if asked.works.is_empty() {
            asked.works = WORKS.to_vec();
        }
        ensure!(asked.turns > 0, "--turns is at least 1");
        Ok(asked)
    }
}

/// Prints the table as it grows and writes `target/bench/defaults.json`.
///
/// # Errors
/// A program cannot be built or started, or a run came to no result.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    let asked = Asked::of(args)?;
    let programs = match &asked.programs {
        Some(folder) => std::path::absolute(folder)?,
        None => built(root)?,
    };
    if let Some(cores) = asked.cores {
        keep_to(cores)?;
    }
    let bench = Bench {
        programs,
        folder: root.join("target/bench/defaults"),
        seconds: asked.seconds,
    };
    println!(
        "\n{:<22} {:>12} {:>12} {:>6} {:>12} {:>7}  best settings",
        "work", "default", "best", "ratio", "beside", "default"
    );
    let mut rows = Vec::new();
    for work in &asked.works {
        let row = measure(&bench, work, &asked).with_context(|| work.name())?;
        println!("{}", row.line());
        rows.push(row.json());
        write(root, "defaults", &rows)?;
    }
    Ok(())
}

/// Builds all programs, and puts them into one folder.
fn built(root: &Path) -> Result<PathBuf> {
    let release = programs::build(root, programs::Profile::Release)?;
    let null = null_sut(root)?;
    super::build_own(root, &[])?;
    std::fs::copy(null, release.join("null_sut"))?;
    Ok(release)
}

/// Keeps this program and what it starts to the first so many cores it may run on.
fn keep_to(cores: usize) -> Result<()> {
    // SAFETY: an all-zero set is an empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: `set` is writable and of the size that is told.
    let got = unsafe { libc::sched_getaffinity(0, size, &raw mut set) };
    ensure!(
        got == 0,
        "sched_getaffinity: {}",
        std::io::Error::last_os_error()
    );
    let mut left = cores;
    for cpu in 0..libc::CPU_SETSIZE as usize {
        // SAFETY: `cpu` is below the size of a set.
        unsafe {
            if libc::CPU_ISSET(cpu, &set) && left > 0 {
                left -= 1;
            } else {
                libc::CPU_CLR(cpu, &mut set);
            }
        }
    }
    ensure!(
        left == 0,
        "--cores {cores}: this program may run on {}",
        cores - left
    );
    // SAFETY: `set` is a set of the size that is told.
    let put = unsafe { libc::sched_setaffinity(0, size, &raw const set) };
    ensure!(
        put == 0,
        "sched_setaffinity: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}

/// What a row came to: rates, and CPU time where payloads are large.
struct Row {
    work: Work,
    default: f64,
    best: f64,
    settings: Settings,
    ratio: f64,
    beside: f64,
    to_beside: f64,
    /// CPU seconds for a gigabyte: default, best, beside.
    cpu: Option<[f64; 3]>,
    /// Settings of the sweep that came to none, and why.
    no_result: Vec<String>,
}

impl Row {
    fn line(&self) -> String {
        let cpu = self.cpu.map_or_else(String::new, |[d, b, s]| {
            format!("  (CPU s/GB {d:.2}, {b:.2}, beside {s:.2})")
        });
        let failed = match self.no_result.len() {
            0 => String::new(),
            n => format!("  ({n} settings came to no result)"),
        };
        format!(
            "{:<22} {:>12.0} {:>12.0} {:>6.3} {:>12.0} {:>7.3}  {}{cpu}{failed}",
            self.work.name(),
            self.default,
            self.best,
            self.ratio,
            self.beside,
            self.to_beside,
            self.settings.line()
        )
    }

    fn json(&self) -> Value {
        json!({
            "work": self.work.name(), "default": self.default, "best": self.best,
            "best_settings": self.settings.said, "ratio": self.ratio,
            "beside": self.beside, "default_to_beside": self.to_beside,
            "no_result": self.no_result,
            "cpu_s_per_gb": self.cpu.map(|[default, best, beside]| {
                json!({"default": default, "best": best, "beside": beside})
            }),
        })
    }
}

/// One row: the sweep, then turns.
fn measure(bench: &Bench, work: &Work, asked: &Asked) -> Result<Row> {
    let plain = Settings::default();
    let first = Trial::start(bench, work, &plain)?.run(FIRST_OFFLINE)?;
    let default = once(bench, work, &plain, Begin::Anywhere)?.0;
    let (mut best, mut settings) = (default, plain.clone());
    let mut no_result = Vec::new();
    for _ in 0..if asked.sweep { DEPTH } else { 0 } {
        let mut found: Option<(f64, Settings)> = None;
        for key in KEYS
            .iter()
            .filter(|k| k.only.is_none_or(|only| only == work.kind))
        {
            let Some(tried) = settings.with(key) else {
                continue;
            };
            let least = found.as_ref().map_or(best, |f| f.0) * GAIN;
            let rate = match once(bench, work, &tried, Begin::Above(least)) {
                Ok((rate, _)) => rate,
                // Settings that come to no result are none that anybody would choose.
                Err(error) => {
                    let line = format!("{}: {error:#}", tried.line());
                    eprintln!("  {}: no result with {line}", work.name());
                    no_result.push(line);
                    continue;
                }
            };
            if rate > least {
                eprintln!("  {}: {rate:.0} with {}", work.name(), tried.line());
                found = Some((rate, tried));
            }
        }
        match found {
            Some((rate, with)) => (best, settings) = (rate, with),
            None => break,
        }
    }
    let mut all: [Vec<f64>; 3] = Default::default();
    let mut cpu: [Vec<f64>; 3] = Default::default();
    let mut push = |i: usize, (rate, s): (f64, f64)| {
        all[i].push(rate);
        cpu[i].push(s);
    };
    let mut bare = Begin::Anywhere;
    for _ in 0..asked.turns {
        let ran = once(bench, work, &plain, Begin::At(default))?;
        push(0, ran);
        // Where nothing that was set brought anything, the defaults are the best settings.
        push(
            1,
            match settings == plain {
                true => ran,
                false => once(bench, work, &settings, Begin::At(best))?,
            },
        );
        let ran = beside(bench, work, first.connections, bare)?;
        bare = Begin::At(ran.0);
        push(2, ran);
    }
    let ratios = |a: &[f64], b: &[f64]| {
        let mut of: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
        median(&mut of)
    };
    let ratio = ratios(&all[0], &all[1]);
    let to_beside = ratios(&all[0], &all[2]);
    let [default, best, beside] = all.map(|mut v| median(&mut v));
    let large = work.kind == Kind::Offline && work.bytes > 65_536;
    Ok(Row {
        work: *work,
        default,
        best,
        settings,
        ratio,
        beside,
        to_beside,
        no_result,
        cpu: large.then(|| cpu.map(|mut v| median(&mut v))),
    })
}

/// Where the search for a rate begins.
#[derive(Clone, Copy, Debug)]
enum Begin {
    /// Nothing is known.
    Anywhere,
    /// It was so much before.
    At(f64),
    /// What comes to less is of no interest, and counts as 0.
    Above(f64),
}

impl Begin {
    fn first(self) -> f64 {
        match self {
            Begin::At(rate) | Begin::Above(rate) if rate > 0.0 => rate,
            _ => FIRST,
        }
    }
}

/// What these settings come to: a rate, and CPU seconds for a gigabyte.
fn once(bench: &Bench, work: &Work, settings: &Settings, begin: Begin) -> Result<(f64, f64)> {
    let trial = Trial::start(bench, work, settings)?;
    match work.kind {
        Kind::Server => {
            if let Begin::Above(least) = begin {
                let (a, b) = (trial.run(least)?, trial.run(least)?);
                if !a.valid && !b.valid {
                    return Ok((0.0, 0.0));
                }
            }
            let held = |rate| trial.run(rate).map(|r| r.valid);
            Ok((climb(begin.first(), held)?, 0.0))
        }
        Kind::Offline => {
            // The first tells how many samples the time has room for.
            let guess = match begin {
                Begin::At(rate) | Begin::Above(rate) => rate,
                Begin::Anywhere => trial.run(FIRST_OFFLINE)?.per_s,
            };
            let mut ran: Vec<Ran> = vec![trial.run(guess)?];
            if !matches!(begin, Begin::Above(least) if ran[0].per_s <= least) {
                ran.push(trial.run(guess)?);
            }
            ran.sort_by(|a, b| b.per_s.total_cmp(&a.per_s));
            Ok((ran[0].per_s, ran[0].cpu_s_per_gb))
        }
    }
}

/// What stands beside the library: the null SUT on another thread, or plain sockets with so many
/// connections on each NIC.
fn beside(bench: &Bench, work: &Work, connections: usize, begin: Begin) -> Result<(f64, f64)> {
    if work.kind == Kind::Offline {
        let json = bench.folder.join("sockets.json");
        let (mut rate, mut cpu) = (0.0, 0.0);
        // A pair of threads for each NIC, or, as the library may have, for each connection. Not
        // where they would share cores: a sender and a receiver on one core hand over in its cache,
        // which no network does.
        let cores = thread::available_parallelism().map_or(2, usize::from);
        let by_connection = Some(work.rails * connections).filter(|threads| 2 * threads <= cores);
        let threads = iter::once(work.rails).chain(by_connection);
        let ways =
            threads.flat_map(|threads| ["4", "16", "64"].map(|in_flight| (threads, in_flight)));
        for (threads, in_flight) in ways {
            let each = work.rails * connections / threads;
            let mut command = Command::new(bench.programs.join("qdl-bench"));
            command
                .arg("sockets")
                .args(["--rails", &threads.to_string()])
                .args(["--connections", &each.to_string()])
                .args(["--request", &work.bytes.to_string()])
                .args(["--in-flight", in_flight])
                .args(["--samples", &SAMPLES.to_string()])
                .args(["--ms", &format!("{:.0}", bench.seconds * 1000.0)])
                .arg("--json")
                .arg(&json);
            process::run_quietly("qdl-bench sockets", &mut command, BESIDE)?;
            let row = read(&json)?;
            let of = |key: &str| row[key].as_f64().unwrap_or(0.0);
            if of("per_s") > rate {
                (rate, cpu) = (of("per_s"), of("cpu_s_per_gb"));
            }
        }
        return Ok((rate, cpu));
    }
    let null = bench.programs.join("null_sut");
    let ms = format!("{:.0}", bench.seconds * 1000.0);
    let rate = climb(begin.first(), |rate| {
        let qps = format!("{rate:.0}");
        let arguments = ["--scenario", "server", "--target-qps", &qps];
        let more = ["--duration-ms", &ms, "--complete", "thread"];
        let out = bench.folder.join("null");
        null_run(&null, &[&arguments[..], &more[..]].concat(), &out).map(|(valid, _)| valid)
    })?;
    Ok((rate, 0.0))
}
