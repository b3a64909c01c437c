//! `cargo xtask bench failover [congestion|cut|silent ...]`: measures what a congested rail and a
//! cut rail cost. Two processes exchange real traffic over four shaped links in network namespaces.
//! Needs root.

mod net;
mod run;
mod trace;

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::{pair::write, table::Table};
use crate::demo::programs;
use net::Rails;
use run::{Act, Plan, Setup};

/// Number of rails, and Mbit/s of each.
const RAILS: usize = 4;
const MBIT: u32 = 300;
/// Load as a share of the rails' capacity.
const LOAD: f64 = 0.6;
/// Bytes of a sample.
const SAMPLE: usize = 150_528;
const ALL: [usize; RAILS] = [0, 1, 2, 3];
/// Index of the rail that is throttled or cut.
const VICTIM: usize = 2;
/// Seconds of the throttle's start, of the first counted latency, of the throttle's end, and of the
/// run's end.
const THROTTLED: f64 = 5.0;
const HALF: f64 = 10.0;
const LIFTED: f64 = 20.0;
const END: f64 = 27.0;
/// TCP's congestion control in these measurements, fixed so that its queueing does not vary.
const CONGESTION: &str = "reno";

/// Samples per second at [`LOAD`].
fn load() -> f64 {
    (f64::from(MBIT) * 1e6 / 8.0 / SAMPLE as f64 * RAILS as f64 * LOAD).round()
}

/// Runs the named measurements, or all.
///
/// # Errors
/// The machine does not permit namespaces, or a run failed.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    let words: Vec<_> = args
        .iter()
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    let known = ["congestion", "cut", "silent"];
    if let Some(w) = words.iter().find(|w| !known.contains(&w.as_str())) {
        bail!(
            "no measurement of rails is called {w}; there are: {}",
            known.join(", ")
        );
    }
    let wanted = |name: &str| words.is_empty() || words.iter().any(|w| w == name);
    let programs = programs::build(root, programs::Profile::Release)?;
    let rails = Rails::new(RAILS, MBIT, CONGESTION)?;
    println!(
        "{RAILS} rails of {MBIT} Mbit/s (tbf, both ends), {} B samples, Server at {}/s ({:.0} % of them), {}, \
         2 connections a rail with 4 slots each",
        SAMPLE,
        load(),
        LOAD * 100.0,
        rails.congestion()?
    );
    let setup = Setup {
        programs: &programs,
        rails: &rails,
        folder: root.join("target/bench/failover"),
    };
    let mut rows = serde_json::Map::new();
    if wanted("congestion") {
        rows.insert("congestion".to_owned(), congestion(&setup)?);
    }
    for (name, silent) in [("cut", false), ("silent", true)] {
        if wanted(name) {
            rows.insert(name.to_owned(), cut(&setup, silent)?);
        }
    }
    write(root, "failover", &rows)
}

const POLICIES: [(&str, &str); 3] = [
    ("round_robin", "round_robin"),
    ("health_best_fit", "health_best_fit"),
    ("health_spray", "{health_spray: {delta: 0.25}}"),
];

/// Throttles a rail to a tenth, and compares with runs without that rail.
fn congestion(setup: &Setup<'_>) -> Result<Value> {
    println!(
        "\nrail {VICTIM} at a tenth of its rate from {THROTTLED} to {LIFTED} s; p99 of samples due from {HALF} to {LIFTED} s\n"
    );
    let without: Vec<usize> = (0..RAILS).filter(|k| *k != VICTIM).collect();
    let mut rows = Vec::new();
    for (name, arbiter) in POLICIES {
        let acts = [
            (THROTTLED, Act::Mbit(VICTIM, MBIT / 10)),
            (LIFTED, Act::Mbit(VICTIM, MBIT)),
        ];
        let run = setup.run(&Plan {
            name: &format!("congestion-{name}"),
            arbiter,
            acts: &acts,
            nics: &ALL,
            seconds: END,
        })?;
        let less = setup.run(&Plan {
            name: &format!("removed-{name}"),
            arbiter,
            nics: &without,
            acts: &[],
            seconds: LIFTED,
        })?;
        let (p99, removed) = (
            run.trace.quantile_ms(HALF, LIFTED, 0.99),
            less.trace.quantile_ms(HALF, LIFTED, 0.99),
        );
        let back = run.back_at(VICTIM, LIFTED);
        rows.push(json!({
            "policy": name,
            "p50_ms": run.trace.quantile_ms(HALF, LIFTED, 0.5),
            "p99_ms": p99,
            "p99_ms_without_the_rail": removed,
            "ratio": p99 / removed,
            "mbytes_per_rail_before": run.mbytes(0.5, THROTTLED),
            "mbytes_per_rail_during": run.mbytes(THROTTLED, LIFTED),
            "mbytes_per_rail_after": run.mbytes(LIFTED, END),
            "share_again_after_s": back,
            "valid": run.summary["valid"],
            "changes": run.changes(),
        }));
    }
    let robin = rows[0]["p99_ms"].as_f64().unwrap_or(f64::NAN);
    for row in &mut rows {
        let p99 = row["p99_ms"].as_f64().unwrap_or(f64::NAN);
        row["round_robins_over_it"] = json!(robin / p99);
    }
    let columns = [
        ("policy", 16, "policy"),
        ("p50 ms", 8, "p50_ms"),
        ("p99 ms", 8, "p99_ms"),
        ("without rail", 13, "p99_ms_without_the_rail"),
        ("ratio", 6, "ratio"),
        ("r_robin/it", 12, "round_robins_over_it"),
        ("back s", 10, "share_again_after_s"),
        ("MB/rail before", 19, "mbytes_per_rail_before"),
        ("during", 19, "mbytes_per_rail_during"),
        ("after", 19, "mbytes_per_rail_after"),
    ];
    print(&columns, &rows);
    Ok(Value::Array(rows))
}

/// Cuts and restores the victim, then cuts rail 0.
fn cut(setup: &Setup<'_>, silent: bool) -> Result<Value> {
    let how = if silent {
        "with nobody told"
    } else {
        "link down"
    };
    println!("\nrail {VICTIM} cut ({how}) at 3 s, restored at 6 s, rail 0 cut at 9 s, of 12 s\n");
    let mut rows = Vec::new();
    for (name, arbiter) in POLICIES {
        let acts = [
            (3.0, Act::cut(VICTIM, silent)),
            (6.0, Act::heal(VICTIM, silent)),
            (9.0, Act::cut(0, silent)),
        ];
        let run = setup.run(&Plan {
            name: &format!("cut-{name}"),
            arbiter,
            acts: &acts,
            nics: &ALL,
            seconds: 12.0,
        })?;
        setup.heal()?;
        let ledger = &run.summary["ledger"];
        rows.push(json!({
            "policy": name,
            "issued": ledger["issued"],
            "answered": ledger["answered"],
            "redispatched": ledger["redispatched"],
            "valid": run.summary["valid"],
            "mismatches": run.summary["mismatches"],
            "verified": run.summary["exit"],
            "longest_stall_ms": run.trace.longest_stall_ms(),
            "longest_latency_ms": run.trace.quantile_ms(0.0, f64::MAX, 1.0),
            "lost_connections": ledger["lost_connections"],
            "share_again_after_s": run.back_at(VICTIM, 6.0),
        }));
    }
    let columns = [
        ("policy", 16, "policy"),
        ("issued", 8, "issued"),
        ("answered", 9, "answered"),
        ("again", 6, "redispatched"),
        ("valid", 6, "valid"),
        ("stall ms", 9, "longest_stall_ms"),
        ("longest ms", 11, "longest_latency_ms"),
        ("back s", 8, "share_again_after_s"),
    ];
    print(&columns, &rows);
    Ok(Value::Array(rows))
}

/// A cell of the table: text unchanged, arrays as `1/2/3`, integers whole, other numbers with one
/// digit.
fn cell(v: &Value) -> String {
    match v {
        Value::String(text) => text.clone(),
        Value::Array(all) => {
            let whole = all
                .iter()
                .map(|n| format!("{:.0}", n.as_f64().unwrap_or(0.0)));
            whole.collect::<Vec<_>>().join("/")
        }
        Value::Number(n) if n.is_f64() => format!("{:.1}", n.as_f64().unwrap_or(0.0)),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// Prints rows. `columns` are heading, width and key of each column.
fn print(columns: &[(&str, usize, &str)], rows: &[Value]) {
    let heads: Vec<_> = columns
        .iter()
        .map(|(name, width, _)| (*name, *width))
        .collect();
    let table = Table::new(&heads);
    for row in rows {
        table.row(columns.iter().map(|(.., key)| cell(&row[key])));
    }
}
