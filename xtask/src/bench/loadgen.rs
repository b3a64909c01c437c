//! `bench loadgen`: compares the bridge with a SUT in C++, and the network with the bridge alone.
//!
//! Every SUT answers at once. Server: the highest rate that LoadGen calls valid with a p99 limit of
//! 10 ms; the SUTs take turns, one step of their search each. Offline: the best of three turns.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;
use tune::highest::{Highest, Rule};

use super::{
    defaults::{self, configs},
    pair::{Pair, null_run, null_sut, write},
    table::Table,
};
use crate::demo::programs::{RELEASE, build};

/// First rate of a search, and minimum rate, in queries per second.
const FIRST: f64 = 100_000.0;
const LEAST: f64 = 500.0;
/// Number of turns of Offline.
const TURNS: usize = 3;

/// Arguments of the null SUT's program: in C++ or over the bridge.
const CPP: &[&str] = &["--language", "cpp"];
const BRIDGE: &[&str] = &["--language", "rust"];

struct Sut {
    name: &'static str,
    /// Arguments of the null SUT's program; `None` for the whole path.
    null: Option<&'static [&'static str]>,
    /// Whether LoadGen coalesces queries; such a SUT has no Offline run.
    coalesce: bool,
    /// Index of the baseline in `SUTS`.
    beside: Option<usize>,
}

const SUTS: [Sut; 5] = [
    sut("C++, other thread", Some(CPP), false, None),
    sut("bridge, other thread", Some(BRIDGE), false, Some(0)),
    sut("whole path", None, false, Some(1)),
    sut("bridge, coalesced", Some(BRIDGE), true, None),
    sut("whole path, coalesced", None, true, Some(3)),
];

const fn sut(
    name: &'static str,
    null: Option<&'static [&'static str]>,
    coalesce: bool,
    beside: Option<usize>,
) -> Sut {
    Sut {
        name,
        null,
        coalesce,
        beside,
    }
}

struct Setup {
    pair: Pair,
    null: PathBuf,
    out: PathBuf,
}

/// Prints the table and writes `target/bench/loadgen.json`.
pub fn run(root: &Path) -> Result<()> {
    let programs = build(root, RELEASE)?;
    let folder = root.join("target/bench/loadgen");
    let bench = Setup {
        pair: Pair::start(root, &programs, &folder, |control| {
            configs(&defaults::LOADGEN, &[], control)
        })?,
        null: null_sut(root)?,
        out: folder.join("null"),
    };
    // A rate fails only after three failed trials: a short disturbance of the machine fails any
    // trial.
    let rule = Rule::Of { hold: 1, trials: 3 };
    let search = Highest {
        least: LEAST,
        rule,
        ..Highest::new(FIRST)
    };
    let mut searches = vec![search; SUTS.len()];
    let mut open = true;
    while std::mem::take(&mut open) {
        for (sut, search) in SUTS.iter().zip(&mut searches) {
            if let Some(rate) = search.next() {
                search.tell(bench.server(sut, rate)?);
                open = true;
            }
        }
    }
    let server: Vec<f64> = searches.iter().map(|s| s.found().unwrap_or(0.0)).collect();
    let mut offline = vec![0.0_f64; SUTS.len()];
    for _ in 0..TURNS {
        for (sut, best) in SUTS.iter().zip(&mut offline) {
            if !sut.coalesce {
                *best = best.max(bench.offline_rate(sut)?);
            }
        }
    }
    let mut rows = Vec::new();
    let table = Table::new(&[
        ("null SUT", 34, "sut", 0),
        ("Server, valid/s", 16, "server_per_s", 0),
        ("ratio", 6, "server_ratio", 3),
        ("Offline/s", 18, "offline_per_s", 0),
        ("ratio", 6, "offline_ratio", 3),
    ]);
    for (i, sut) in SUTS.iter().enumerate() {
        let ratio = |of: &[f64]| {
            let ratio = sut.beside.map(|b| of[i] / of[b]);
            ratio.filter(|ratio| ratio.is_finite())
        };
        let row = json!({
            "sut": sut.name, "beside": sut.beside.map(|b| SUTS[b].name),
            "server_per_s": server[i], "server_ratio": ratio(&server),
            "offline_per_s": (!sut.coalesce).then_some(offline[i]), "offline_ratio": ratio(&offline),
        });
        table.row(&row);
        rows.push(row);
    }
    println!(
        "A ratio is to the SUT of the same kind above: C++ for the bridge, the bridge for the whole path."
    );
    write(root, "loadgen", &rows)
}

impl Setup {
    /// Whether a Server run of one second at this rate is valid.
    fn server(&self, sut: &Sut, rate: f64) -> Result<bool> {
        let qps = format!("{rate:.0}");
        let mut arguments = vec!["--scenario", "server", "--target-qps", &qps];
        let Some(kind) = sut.null else {
            arguments.extend(["--duration-s", "1", "--set", "target_latency=10"]);
            if sut.coalesce {
                arguments.extend(["--set", "coalesce_queries=1"]);
            }
            return Ok(self.pair.run(&arguments)?.valid);
        };
        arguments.extend(["--duration-ms", "1000"]);
        arguments.extend(kind);
        if sut.coalesce {
            arguments.push("--coalesce");
        }
        Ok(null_run(&self.null, &arguments, &self.out)?.0)
    }

    fn offline_rate(&self, sut: &Sut) -> Result<f64> {
        let mut arguments = vec!["--scenario", "offline"];
        let Some(kind) = sut.null else {
            arguments.extend(["--samples", "1000000", "--set", "min_duration=0"]);
            return Ok(self.pair.run(&arguments)?.per_s());
        };
        // LoadGen derives the number of samples from the expected rate, and a null SUT completes
        // tens of millions a second. The minimum duration does not matter here.
        arguments.extend(["--target-qps", "60000000", "--duration-ms", "60"]);
        arguments.extend(kind);
        Ok(null_run(&self.null, &arguments, &self.out)?.1)
    }
}
