//! Which runs there are, each as a process of its own: LoadGen tests once in a process.

use std::{
    io::Read,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use verbs::stub::answering;

use super::{Args, Row, Scenario, cpu};

/// Samples of the first run of a cell, which says how many make a run as long as it is to be.
const FIRST: u64 = 100_000;
/// Most samples of a run: LoadGen keeps some hundred bytes of each.
const MOST: f64 = 8e6;
/// For a run; under valgrind it takes fifty times as long.
const RUN: Duration = Duration::from_secs(300);
/// Samples of a run whose instructions are counted.
const COUNTED: u64 = 100_000;
/// What is counted, with all that it calls, and a part of its name in the profile.
const FUNCTIONS: [(&str, &str); 5] = [
    (
        "issue",
        "loadgen_bridge::run::SystemUnderTest>::issue_query",
    ),
    (
        "post, doorbell",
        "qdl::connection::token::SendToken<T>::drive",
    ),
    ("arrival", "qdl::fabric::Rx>::poll"),
    ("completion", "qdl::dispatch::api::Completer>::complete"),
    ("record", "qdl::dispatch::api::Completer>::record"),
];
/// NICs with which the cores are varied: 8 of 400 Gbit/s, 32 of 100.
const VARIED: [usize; 2] = [8, 32];

/// All that was measured.
#[derive(Debug, Serialize)]
pub struct Results {
    /// Cores that there were.
    pub cores: usize,
    /// Bytes of a sample, and microseconds from a doorbell to its answers.
    pub bytes: usize,
    /// See `bytes`.
    pub round_trip_us: u64,
    /// What the stub takes of each sample.
    pub stub: Stub,
    /// Of each cell the median run, in the order of their rates.
    pub rows: Vec<Row>,
    /// Rates of all runs of each row.
    pub all_per_s: Vec<Vec<f64>>,
    /// Instructions of the whole process for each sample.
    pub instructions: Vec<Instructions>,
}

/// See [`answering::Cost`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Stub {
    /// Nanoseconds to post one work request with a doorbell of its own.
    pub post_alone_ns: f64,
    /// In a chain of 64.
    pub post_ns: f64,
    /// To poll an answer, without writing its header.
    pub poll_ns: f64,
}

/// What valgrind counted.
#[derive(Clone, Debug, Serialize)]
pub struct Instructions {
    /// How queries came.
    pub scenario: Scenario,
    /// Stubbed NICs.
    pub nics: usize,
    /// Instructions for each sample of each step, with LoadGen's and the stub's part in it. Where
    /// the issue thread posts by itself, `issue` includes its part of `post, doorbell`.
    pub each: Vec<(&'static str, f64)>,
}

/// Runs everything, and says where it is. `kept` is called with all there is after each row: it
/// takes minutes, and whoever ends it early has what was measured.
pub fn run(args: &Args, mut kept: impl FnMut(&Results) -> Result<()>) -> Result<Results> {
    ensure!(!args.nics.is_empty(), "--nics: none is given");
    let all = cpu::cores();
    let cost = answering::cost(args.round_trip_us * 1000);
    let mut results = Results {
        cores: all,
        bytes: args.bytes,
        round_trip_us: args.round_trip_us,
        stub: Stub {
            post_alone_ns: cost.post_alone_ns,
            post_ns: cost.post_ns,
            poll_ns: cost.poll_ns,
        },
        rows: Vec::new(),
        all_per_s: Vec::new(),
        instructions: Vec::new(),
    };
    for &scenario in &args.scenarios {
        for &nics in &args.nics {
            for cores in cores(args, nics, all) {
                eprint!("{scenario:?}, {nics} NIC(s), {cores} core(s): ");
                let (row, per_s) = cell(args, scenario, nics, cores)?;
                eprintln!("{:.0} samples/s", row.per_s);
                results.rows.push(row);
                results.all_per_s.push(per_s);
                kept(&results)?;
            }
        }
        if args.instructions {
            for nics in [args.nics[0], args.nics[args.nics.len() - 1]] {
                eprintln!("{scenario:?}, {nics} NIC(s), under valgrind");
                results
                    .instructions
                    .push(instructions(args, scenario, nics)?);
            }
        }
    }
    Ok(results)
}

fn cores(args: &Args, nics: usize, all: usize) -> Vec<usize> {
    match args.cores.as_slice() {
        [] if VARIED.contains(&nics) => cpu::steps(all),
        [] => vec![all],
        some => some.to_vec(),
    }
}

/// The median of a cell's runs, and all their rates.
fn cell(args: &Args, scenario: Scenario, nics: usize, cores: usize) -> Result<(Row, Vec<f64>)> {
    let first = one(args, scenario, nics, cores, FIRST)?;
    let samples = (first.per_s * args.seconds).clamp(FIRST as f64, MOST) as u64;
    let mut rows = (0..args.turns.max(1))
        .map(|_| one(args, scenario, nics, cores, samples))
        .collect::<Result<Vec<_>>>()?;
    rows.sort_by(|a, b| a.per_s.total_cmp(&b.per_s));
    let per_s = rows.iter().map(|r| r.per_s).collect();
    Ok((rows.swap_remove(rows.len() / 2), per_s))
}

/// This program again, for one run.
fn again(args: &Args, scenario: Scenario, nics: usize, cores: usize, samples: u64) -> Vec<String> {
    let scenario = clap::ValueEnum::to_possible_value(&scenario);
    let scenario = scenario.map_or_else(String::new, |v| v.get_name().to_owned());
    let mut words = vec!["feed".to_owned()];
    for (key, value) in [
        ("--one", samples.to_string()),
        ("--scenarios", scenario),
        ("--nics", nics.to_string()),
        ("--cores", cores.to_string()),
        ("--bytes", args.bytes.to_string()),
        ("--response", args.response.to_string()),
        ("--round-trip-us", args.round_trip_us.to_string()),
        ("--issue-threads", args.issue_threads.to_string()),
        ("--nic", args.nic.clone()),
        ("--config", args.config.clone()),
    ] {
        words.push(format!("{key}={value}"));
    }
    words
}

fn one(args: &Args, scenario: Scenario, nics: usize, cores: usize, samples: u64) -> Result<Row> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(again(args, scenario, nics, cores, samples));
    let (stdout, _) = finish(&mut command)?;
    let line = stdout.lines().last().context("a run printed nothing")?;
    serde_json::from_str(line).with_context(|| format!("a run printed {line:?}"))
}

/// One run under callgrind, on which one thread runs at a time.
fn instructions(args: &Args, scenario: Scenario, nics: usize) -> Result<Instructions> {
    let mut args = args.clone();
    // What is waited for is looked for, and that would be counted.
    args.round_trip_us = 0;
    let file = std::env::temp_dir().join(format!("qdl-feed-{}.callgrind", std::process::id()));
    let mut command = Command::new("valgrind");
    command
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(std::env::current_exe()?)
        .args(again(&args, scenario, nics, cpu::cores(), COUNTED));
    finish(&mut command)?;
    let mut command = Command::new("callgrind_annotate");
    command
        .args(["--inclusive=yes", "--threshold=100"])
        .arg(&file);
    let profile = finish(&mut command);
    // It is of no further use, and may be of some megabytes.
    let _ = std::fs::remove_file(&file);
    let (profile, _) = profile?;
    let each = FUNCTIONS
        .iter()
        .filter_map(|(step, name)| Some((*step, counted(&profile, name)? / COUNTED as f64)));
    Ok(Instructions {
        scenario,
        nics,
        each: each.collect(),
    })
}

/// The first, so the largest, number beside a function of that name: `1,234 (0.5%)  file:name`.
fn counted(profile: &str, name: &str) -> Option<f64> {
    let line = profile.lines().find(|l| l.contains(name))?;
    let number = line.split('(').next()?.trim().replace(',', "");
    number.parse().ok()
}

/// Runs it to its end, within [`RUN`]; what it wrote to standard output and error.
fn finish(command: &mut Command) -> Result<(String, String)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", command.get_program().to_string_lossy()))?;
    let readers = (reader(child.stdout.take()), reader(child.stderr.take()));
    let status = wait(&mut child)?;
    let text = |r: thread::JoinHandle<String>| r.join().unwrap_or_default();
    let (stdout, stderr) = (text(readers.0), text(readers.1));
    if !status.success() {
        bail!(
            "{}: {status}: {}",
            command.get_program().to_string_lossy(),
            stderr.trim()
        );
    }
    Ok((stdout, stderr))
}

fn reader(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        if let Some(mut from) = from {
            // What cannot be read is missed where it is looked for.
            let _ = from.read_to_string(&mut text);
        }
        text
    })
}

fn wait(child: &mut Child) -> Result<std::process::ExitStatus> {
    let end = Instant::now() + RUN;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            bail!("a run was not done after {} s", RUN.as_secs());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_valgrind_counted_stands_beside_the_function() {
        let profile = "440,141,350 (100.0%)  PROGRAM TOTALS\n\n 73,687,185 (16.74%)  \
                       a/token.rs:qdl::connection::token::SendToken<T>::drive\n 1,000 ( 0.01%)  \
                       b.rs:qdl::connection::token::SendToken<T>::drive [x]\n";
        assert_eq!(counted(profile, FUNCTIONS[1].1), Some(73_687_185.0));
        assert_eq!(counted(profile, FUNCTIONS[0].1), None);
    }
}
