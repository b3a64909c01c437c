//! `cargo xtask bench failover [congestion|cut|silent ...]`: measures what a congested rail and a
//! cut rail cost. Two processes exchange real traffic over four shaped links in network namespaces.
//! Needs root.

mod net;
mod trace;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use launch::{Accelerator, Running, read_json, write_json};
use serde_json::{Value, json};

use super::{results, table::Table};
use crate::namespaces::HostSide;
use crate::programs;
use net::Rails;
use trace::Trace;

/// Number of rails, and Mbit/s of each.
const RAILS: usize = 4;
const MBIT: u32 = 300;
/// Load as a share of the rails' capacity.
const LOAD: f64 = 0.6;
const SAMPLE: usize = 150_528;
const ALL: [usize; RAILS] = [0, 1, 2, 3];
/// Index of the rail that is throttled or cut.
const VICTIM: usize = 2;
/// Seconds into the run: start of the throttle, first counted latency, end of the throttle, end of
/// the run.
const THROTTLED: f64 = 5.0;
const HALF: f64 = 10.0;
const LIFTED: f64 = 20.0;
const END: f64 = 27.0;
/// TCP's congestion control in these measurements, fixed so that its queueing does not vary.
const CONGESTION: &str = "reno";

fn load() -> f64 {
    (f64::from(MBIT) * 1e6 / 8.0 / SAMPLE as f64 * RAILS as f64 * LOAD).round()
}

/// Period of reading the rails' byte counters.
const EVERY: Duration = Duration::from_millis(100);
/// Time beyond the run's seconds, for LoadGen's start and end.
const MORE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
enum RailAction {
    /// Sets the rail's rate, in Mbit/s.
    Mbit(usize, u32),
    /// Takes the rail's link at the frontend down or up.
    Link(usize, bool),
    /// Adds (true) or deletes (false) the rail's address at the accelerator: a silent cut.
    Path(usize, bool),
}

impl RailAction {
    fn apply(self, rails: &Rails) -> Result<()> {
        match self {
            RailAction::Mbit(k, mbit) => rails.shape(k, mbit),
            RailAction::Link(k, up) => rails.link_up(k, up),
            RailAction::Path(k, works) => rails.set_path(k, works),
        }
    }
}

struct RunPlan<'a> {
    name: &'a str,
    arbiter: &'a str,
    nics: &'a [usize],
    /// Changes, each with its time in seconds after the warm-up.
    acts: &'a [(f64, RailAction)],
    seconds: f64,
}

struct RunResult {
    trace: Trace,
    summary: Value,
    /// Samples of the rails' byte counters, with their time in seconds.
    bytes: Vec<(f64, Vec<u64>)>,
}

struct Setup<'a> {
    programs: &'a Path,
    rails: &'a Rails,
    folder: PathBuf,
}

/// Deadlines that notice a silent rail soon, and do not end a slow rail.
const DEADLINES: &str =
    "deadlines: {connect_ms: 5000, lost_ms: 4000, echo_interval_ms: 25, echo_timeout_ms: 150}\n";

impl Setup<'_> {
    fn control(&self) -> String {
        let rails = self.rails;
        rails.net.address(HostSide::Accelerator, rails.count)
    }

    fn frontend_yaml(&self, plan: &RunPlan<'_>) -> String {
        let nic = |k: &usize| {
            let address = self.rails.net.address(HostSide::Frontend, *k);
            format!("  - {{address: {address}, connections: 2, slots: 4}}\n")
        };
        let nics: String = plan.nics.iter().map(nic).collect();
        format!(
            "node: front\nauth: none\n\
             model: {{name: digest, inputs: [{{name: input, dtype: u8, shape: [{SAMPLE}], ragged: true}}], \
             output: {{name: output, dtype: u8, shape: [8]}}}}\n\
             dataset: {{kind: random, count: 256, seed: 3, min_bytes: {SAMPLE}, max_bytes: {SAMPLE}, distribution: fixed}}\n\
             verify: digest\narbiter: {}\n{DEADLINES}\
             accelerators: [{{control: \"{}:7400\"}}]\nnics:\n{nics}",
            plan.arbiter,
            self.control()
        )
    }

    fn accelerator_yaml(&self, plan: &RunPlan<'_>) -> String {
        let nic = |k: &usize| {
            let address = self.rails.net.address(HostSide::Accelerator, *k);
            format!("  - {{listen: \"{address}:7410\"}}\n")
        };
        let nics: String = plan.nics.iter().map(nic).collect();
        format!(
            "node: acc\nauth: none\ncontrol: {{listen: \"{}:7400\"}}\n\
             model: {{name: digest, max_input_bytes: {SAMPLE}}}\nengine: {{kind: digest}}\nnics:\n{nics}",
            self.control()
        )
    }

    fn heal(&self) -> Result<()> {
        for k in 0..self.rails.count {
            self.rails.link_up(k, true)?;
            // Adding an existing address fails, which is harmless; a missing address returns.
            let _ = self.rails.set_path(k, true);
        }
        // A connection lost in the warm-up would end the run.
        self.rails.wait_up()
    }

    fn run(&self, plan: &RunPlan<'_>) -> Result<RunResult> {
        let folder = self.folder.join(plan.name);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let put = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).map(|()| path)
        };
        let accelerator = put("accelerator.yaml", self.accelerator_yaml(plan))?;
        let frontend = put("frontend.yaml", self.frontend_yaml(plan))?;
        let log = folder.join("accelerator.log");
        let net = &self.rails.net;
        let program = |name| self.programs.join(name);
        let mut command = net.command(HostSide::Accelerator, &program("accelerator"));
        command.arg("--config").arg(accelerator);
        let mut serving = Accelerator::start_in(&mut command, &log)?;
        let out = folder.join("out");
        let mut command = net.command(HostSide::Frontend, &program("frontend"));
        command.arg("--config").arg(frontend);
        command.args(["--force", "--output"]).arg(&out);
        let run = format!(
            "--scenario server --target-qps {} --duration-s {} --set target_latency=30000 \
             --set enable_trace=true",
            load(),
            plan.seconds
        );
        command.args(run.split_whitespace());
        let said = std::fs::File::create(folder.join("frontend.log"))?;
        command.stdout(said.try_clone()?).stderr(said);
        let mut running = Running::start("frontend", &mut command)?;
        let bytes = self.watch(plan, &mut running, &folder.join("frontend.log"))?;
        serving.check(&log)?;
        drop(serving);
        let summary = read_json(&out.join("summary.json")).with_context(|| {
            let log = folder.join("frontend.log");
            std::fs::read_to_string(log).unwrap_or_default()
        })?;
        Ok(RunResult {
            trace: Trace::read(&out.join("mlperf_log_trace.json"))?,
            summary,
            bytes,
        })
    }

    /// Samples the rails' byte counters until the frontend ends, and makes the planned changes.
    fn watch(
        &self,
        plan: &RunPlan<'_>,
        running: &mut Running,
        log: &Path,
    ) -> Result<Vec<(f64, Vec<u64>)>> {
        let began = Instant::now();
        let warm = || std::fs::read_to_string(log).is_ok_and(|said| said.contains(" warmed "));
        let (mut since, mut bytes, mut acts) = (None, Vec::new(), plan.acts.iter());
        let mut next = acts.next();
        let limit = Duration::from_secs_f64(plan.seconds) + MORE;
        while running.try_status()?.is_none() {
            ensure!(began.elapsed() < limit, "the frontend does not end");
            let now = self.rails.bytes()?;
            if since.is_none() && warm() {
                since = Some(Instant::now());
            }
            let Some(since) = since else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            bytes.push((since.elapsed().as_secs_f64(), now));
            let until = Instant::now() + EVERY;
            while let Some((at, act)) = next
                && since + Duration::from_secs_f64(*at) <= until
            {
                let at = since + Duration::from_secs_f64(*at);
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                act.apply(self.rails)?;
                next = acts.next();
            }
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        Ok(bytes)
    }
}

impl RunResult {
    fn bytes_at(&self, at: f64) -> Vec<u64> {
        let before = self.bytes.iter().rev().find(|(t, _)| *t <= at);
        let found = before.or(self.bytes.first());
        found.map_or_else(|| vec![0; RAILS], |(_, b)| b.clone())
    }

    /// Megabytes on each rail between two times.
    fn mbytes(&self, from: f64, to: f64) -> Vec<f64> {
        let (a, b) = (self.bytes_at(from), self.bytes_at(to));
        let each = a.iter().zip(&b).map(|(a, b)| (b - a) as f64 / 1e6);
        each.map(|m| (m * 10.0).round() / 10.0).collect()
    }

    /// Seconds after `from` until the rail carries 80 % of an even share for half a second.
    fn back_at(&self, rail: usize, from: f64) -> Option<f64> {
        let mut at = from;
        while at + 0.5 <= self.bytes.last()?.0 {
            let (a, b) = (self.bytes_at(at), self.bytes_at(at + 0.5));
            let carried = |k: usize| (b[k] - a[k]) as f64;
            let all: f64 = (0..RAILS).map(carried).sum();
            if all > 0.0 && carried(rail) >= 0.8 * all / RAILS as f64 {
                return Some(at - from);
            }
            at += 0.1;
        }
        None
    }

    /// Times and kinds of each rail's changes of state, for policies by health.
    fn changes(&self) -> Vec<Value> {
        let rails = self.summary["rails"].as_array().into_iter().flatten();
        let changes = |r: &Value| json!({"rail": r["name"], "changes": r["changes"]});
        rails.map(changes).collect()
    }
}

/// Runs the named measurements, or all.
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
    let programs = programs::build(root, programs::RELEASE)?;
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
    let json = results(root, "failover")?;
    write_json(&json, &rows)?;
    println!("rows: {}", json.display());
    Ok(())
}

const POLICIES: [(&str, &str); 3] = [
    ("round_robin", "round_robin"),
    ("health_best_fit", "health_best_fit"),
    ("health_spray", "{health_spray: {delta: 0.25}}"),
];

/// Throttles the rail [`VICTIM`] to a tenth, and compares with runs without that rail.
fn congestion(setup: &Setup<'_>) -> Result<Value> {
    println!(
        "\nrail {VICTIM} at a tenth of its rate from {THROTTLED} to {LIFTED} s; p99 of samples due from {HALF} to {LIFTED} s\n"
    );
    let without: Vec<usize> = (0..RAILS).filter(|k| *k != VICTIM).collect();
    let mut rows = Vec::new();
    for (name, arbiter) in POLICIES {
        let acts = [
            (THROTTLED, RailAction::Mbit(VICTIM, MBIT / 10)),
            (LIFTED, RailAction::Mbit(VICTIM, MBIT)),
        ];
        let run = setup.run(&RunPlan {
            name: &format!("congestion-{name}"),
            arbiter,
            acts: &acts,
            nics: &ALL,
            seconds: END,
        })?;
        let less = setup.run(&RunPlan {
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
    let table = Table::new(&[
        ("policy", 16, "policy", 0),
        ("p50 ms", 8, "p50_ms", 1),
        ("p99 ms", 8, "p99_ms", 1),
        ("without rail", 13, "p99_ms_without_the_rail", 1),
        ("ratio", 6, "ratio", 1),
        ("r_robin/it", 12, "round_robins_over_it", 1),
        ("back s", 10, "share_again_after_s", 1),
        ("MB/rail before", 19, "mbytes_per_rail_before", 0),
        ("during", 19, "mbytes_per_rail_during", 0),
        ("after", 19, "mbytes_per_rail_after", 0),
    ]);
    rows.iter().for_each(|row| table.row(row));
    Ok(Value::Array(rows))
}

/// Cuts and restores the rail [`VICTIM`], then cuts rail 0.
fn cut(setup: &Setup<'_>, silent: bool) -> Result<Value> {
    let how = if silent { "silently" } else { "link down" };
    let act = |rail, works| match silent {
        true => RailAction::Path(rail, works),
        false => RailAction::Link(rail, works),
    };
    println!("\nrail {VICTIM} cut ({how}) at 3 s, restored at 6 s, rail 0 cut at 9 s, of 12 s\n");
    let mut rows = Vec::new();
    for (name, arbiter) in POLICIES {
        let acts = [
            (3.0, act(VICTIM, false)),
            (6.0, act(VICTIM, true)),
            (9.0, act(0, false)),
        ];
        let run = setup.run(&RunPlan {
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
    let table = Table::new(&[
        ("policy", 16, "policy", 0),
        ("issued", 8, "issued", 0),
        ("answered", 9, "answered", 0),
        ("again", 6, "redispatched", 0),
        ("valid", 6, "valid", 0),
        ("stall ms", 9, "longest_stall_ms", 1),
        ("longest ms", 11, "longest_latency_ms", 1),
        ("back s", 8, "share_again_after_s", 1),
    ]);
    rows.iter().for_each(|row| table.row(row));
    Ok(Value::Array(rows))
}
