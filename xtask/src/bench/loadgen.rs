//! `bench loadgen`: what the bridge costs beside a SUT in C++
//! from end to end, and what the wire costs beside no wire.
//!
//! Every SUT answers at once. For Server, the highest rate that LoadGen
//! calls valid with 10 ms at the 99th percentile, each SUT taking one
//! step of its search in turn; for Offline, the best of three turns.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tune::highest::{Highest, Rule};

use super::{
    pair::{Nodes, Pair, write},
    table::Table,
};
use crate::process;

/// For one run of the null SUT.
const RUN: Duration = Duration::from_secs(300);
/// For building it.
const BUILD: Duration = Duration::from_secs(3600);
/// Rate at which searches begin, and below which none goes on.
const FIRST: f64 = 100_000.0;
const LEAST: f64 = 500.0;
/// Turns of Offline.
const TURNS: usize = 3;
/// Samples of an Offline run: of a null SUT, which does
/// tens of millions in a second, and of the whole path.
const NULL_QPS: &str = "60000000";
const SAMPLES: &str = "1000000";

/// The nodes of the whole path.
const WHOLE_PATH: Nodes<'_> = Nodes {
    name: "loadgen",
    accelerator_model: "{name: null-64, max_input_bytes: 64}",
    frontend: "model: {name: null-64, inputs: [{name: input, dtype: u8, shape: [64], ragged: true}], \
               output: {name: output, dtype: u8, shape: [8]}}\n\
               dataset: {kind: random, distribution: fixed, count: 1024}\n",
    engine: "{kind: \"null\"}",
    connections: 1,
};
/// One SUT.
struct Sut {
    name: &'static str,
    /// Arguments of the null SUT's program; none for the whole path.
    null: Option<&'static [&'static str]>,
    coalesce: bool,
    /// Compared with the SUT of this name.
    beside: Option<&'static str>,
}

const SUTS: &[Sut] = &[
    Sut {
        name: "C++, inline",
        null: Some(&["--language", "cpp", "--complete", "inline"]),
        coalesce: false,
        beside: None,
    },
    Sut {
        name: "bridge, inline",
        null: Some(&["--language", "rust", "--complete", "inline"]),
        coalesce: false,
        beside: Some("C++, inline"),
    },
    Sut {
        name: "C++, other thread",
        null: Some(&["--language", "cpp", "--complete", "thread"]),
        coalesce: false,
        beside: None,
    },
    Sut {
        name: "bridge, other thread",
        null: Some(&["--language", "rust", "--complete", "thread"]),
        coalesce: false,
        beside: Some("C++, other thread"),
    },
    Sut {
        name: "whole path",
        null: None,
        coalesce: false,
        beside: Some("bridge, other thread"),
    },
    Sut {
        name: "bridge, other thread, coalesced",
        null: Some(&["--language", "rust", "--complete", "thread", "--coalesce"]),
        coalesce: true,
        beside: None,
    },
    Sut {
        name: "whole path, coalesced",
        null: None,
        coalesce: true,
        beside: Some("bridge, other thread, coalesced"),
    },
];

/// A search that tries a rate three times before it counts as failed: a machine that does something
/// else for a moment fails any.
fn search(first: f64) -> Highest {
    let rule = Rule::Of { hold: 1, trials: 3 };
    Highest::new(first).within(LEAST, f64::MAX).rule(rule)
}

/// Prints the table and writes `target/bench/loadgen.json`.
///
/// # Errors
/// A program cannot be built or came to no result.
pub fn run(root: &Path) -> Result<()> {
    let pair = Pair::start(root, &WHOLE_PATH)?;
    let null = null_sut(root)?;
    let mut searches = vec![search(FIRST); SUTS.len()];
    let mut open = true;
    while std::mem::take(&mut open) {
        for (sut, search) in SUTS.iter().zip(&mut searches) {
            if let Some(rate) = search.next() {
                search.tell(server(root, &null, &pair, sut, rate)?);
                open = true;
            }
        }
    }
    let server: Vec<f64> = searches.iter().map(|s| s.found().unwrap_or(0.0)).collect();
    let mut offline = vec![0.0_f64; SUTS.len()];
    for _ in 0..TURNS {
        for (sut, best) in SUTS.iter().zip(&mut offline) {
            if !sut.coalesce {
                *best = best.max(offline_rate(root, &null, &pair, sut)?);
            }
        }
    }
    let mut rows = Vec::new();
    let table = Table::new(&[
        ("null SUT", 34),
        ("Server, valid/s", 16),
        ("ratio", 6),
        ("Offline/s", 18),
        ("ratio", 6),
    ]);
    for (i, sut) in SUTS.iter().enumerate() {
        let beside = sut
            .beside
            .and_then(|name| SUTS.iter().position(|s| s.name == name));
        let ratio = |of: &[f64]| {
            beside
                .map(|b| of[i] / of[b])
                .filter(|ratio| ratio.is_finite())
        };
        let (server_ratio, offline_ratio) = (ratio(&server), ratio(&offline));
        let shown = |ratio: Option<f64>| ratio.map_or_else(String::new, |r| format!("{r:.3}"));
        table.row([
            sut.name.to_owned(),
            format!("{:.0}", server[i]),
            shown(server_ratio),
            format!("{:.0}", offline[i]),
            shown(offline_ratio),
        ]);
        rows.push(json!({
            "sut": sut.name, "beside": sut.beside,
            "server_per_s": server[i], "server_ratio": server_ratio,
            "offline_per_s": (!sut.coalesce).then_some(offline[i]), "offline_ratio": offline_ratio,
        }));
    }
    println!(
        "A ratio is to the SUT of the same kind above: C++ for the bridge, the bridge for the whole path."
    );
    write(root, "loadgen", &rows)
}

/// Builds the null SUT; where it lies.
pub(super) fn null_sut(root: &Path) -> Result<PathBuf> {
    let mut build = process::cargo(root);
    build.args([
        "build",
        "--release",
        "--locked",
        "--package",
        "loadgen-bridge",
    ]);
    build.args(["--example", "null_sut", "--features", "bench"]);
    let status = process::run("cargo build", &mut build, BUILD)?;
    ensure!(status.success(), "cargo build: {status}");
    let target = process::target(root);
    Ok(target.join("release/examples/null_sut"))
}

/// Where the null SUT's logs go.
fn null_out(root: &Path) -> PathBuf {
    root.join("target/bench/loadgen/null")
}

/// Runs the null SUT; whether LoadGen calls it valid, and its figure.
pub(super) fn null_run(program: &Path, arguments: &[&str], out: &Path) -> Result<(bool, f64)> {
    let mut command = Command::new(program);
    command.args(arguments).arg("--outdir").arg(out);
    let (status, text) = process::run_copying("null_sut", &mut command, RUN, false)?;
    if !matches!(status.code(), Some(0 | 1)) {
        bail!("{}: {status}\n{text}", process::shown(&command));
    }
    let line = text.lines().next().unwrap_or_default();
    let figure = line.split(": ").nth(1).and_then(|l| l.split(' ').next());
    let rate = figure
        .and_then(|f| f.parse().ok())
        .with_context(|| format!("null_sut: no figure in {text:?}"))?;
    Ok((status.code() == Some(0), rate))
}

fn server(root: &Path, null: &Path, pair: &Pair, sut: &Sut, rate: f64) -> Result<bool> {
    let qps = format!("{rate:.0}");
    let Some(kind) = sut.null else {
        let mut arguments = vec!["--scenario", "server", "--target-qps", &qps];
        arguments.extend(["--duration-s", "1", "--set", "target_latency=10"]);
        if sut.coalesce {
            arguments.extend(["--set", "coalesce_queries=1"]);
        }
        return Ok(pair.run(&arguments)?.valid);
    };
    let mut arguments = vec!["--scenario", "server", "--target-qps", &qps];
    arguments.extend(["--duration-ms", "1000"]);
    arguments.extend(kind);
    Ok(null_run(null, &arguments, &null_out(root))?.0)
}

fn offline_rate(root: &Path, null: &Path, pair: &Pair, sut: &Sut) -> Result<f64> {
    let Some(kind) = sut.null else {
        let arguments = ["--scenario", "offline", "--samples", SAMPLES];
        let long = ["--set", "min_duration=0"];
        return Ok(pair.run(&[&arguments[..], &long[..]].concat())?.per_s());
    };
    // LoadGen takes its samples from the expected rate;
    // how long the run has to be is not asked here.
    let mut arguments = vec!["--scenario", "offline", "--target-qps", NULL_QPS];
    arguments.extend(["--duration-ms", "60"]);
    arguments.extend(kind);
    Ok(null_run(null, &arguments, &null_out(root))?.1)
}
