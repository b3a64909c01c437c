//! `bench idle`: what a connected pair of the real programs costs
//! while it waits for samples, with the default configuration.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::pair::{Nodes, Pair, write};
use super::table::Table;
use crate::process::Running;

/// How long is looked.
const LOOK: Duration = Duration::from_secs(10);
/// Before that: connecting, warming up, LoadGen's own beginning.
const BEFORE: Duration = Duration::from_secs(4);
/// For the frontend to end afterwards.
const REST: Duration = Duration::from_secs(60);

/// Prints the table and writes `target/bench/idle.json`.
///
/// # Errors
/// A program cannot be built, or ended early.
pub fn run(root: &Path) -> Result<()> {
    let mut rows = Vec::new();
    let table = Table::new(&[
        ("connections", 12),
        ("samples/s", 12),
        ("frontend", 14),
        ("accelerator", 14),
        ("both", 8),
    ]);
    for (connections, qps) in [(1, "0.2"), (8, "0.2"), (8, "10")] {
        let pair = Pair::start(
            root,
            &Nodes {
                name: "idle",
                accelerator_model: "{name: null-64, max_input_bytes: 64}",
                frontend: "model: {name: null-64, inputs: [{name: input, dtype: u8, shape: [64], ragged: true}], \
                           output: {name: output, dtype: u8, shape: [8]}}\n\
                           dataset: {kind: random, distribution: fixed, count: 64}\n",
                engine: "{kind: \"null\"}",
                connections,
            },
        )?;
        let arguments = ["--scenario", "server", "--target-qps", qps];
        let length = ["--duration-s", "18", "--set", "min_query_count=1"];
        let bound = ["--set", "target_latency=1000"];
        let mut frontend = pair.begin(&[&arguments[..], &length, &bound].concat())?;
        std::thread::sleep(BEFORE);
        let (near, far) = (frontend.id(), pair.accelerator());
        let (began, before) = (Instant::now(), [cpu_s(near)?, cpu_s(far)?]);
        std::thread::sleep(LOOK);
        if frontend.ended()?.is_some() {
            bail!("the frontend ended before it was looked at");
        }
        let after = [cpu_s(near)?, cpu_s(far)?];
        let seconds = began.elapsed().as_secs_f64();
        let share = [0, 1].map(|i| (after[i] - before[i]) / seconds);
        end(&mut frontend)?;
        let percent = |s: f64| format!("{:.2} %", s * 100.0);
        table.row([
            connections.to_string(),
            qps.to_owned(),
            percent(share[0]),
            percent(share[1]),
            percent(share[0] + share[1]),
        ]);
        rows.push(json!({
            "connections": connections, "samples_per_s": qps.parse::<f64>().unwrap_or(0.0), "seconds": seconds,
            "frontend_core_share": share[0], "accelerator_core_share": share[1], "core_share": share[0] + share[1],
        }));
    }
    println!("Shares of one core, user and system time of /proc/PID/stat.");
    write(root, "idle", &rows)
}

fn end(frontend: &mut Running) -> Result<()> {
    let status = frontend.wait(REST)?;
    match status.code() {
        Some(0 | 1) => Ok(()),
        _ => bail!("frontend: {status}"),
    }
}

/// User and system time of a process, all its threads, in seconds.
fn cpu_s(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    ticks(&text)
        .map(|t| t as f64 / ticks_per_s())
        .with_context(|| format!("{path}: {text}"))
}

/// `utime` and `stime`: the 14th and 15th field. The second, in parentheses, may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut field = || fields.next()?.parse::<u64>().ok();
    Some(field()? + field()?)
}

fn ticks_per_s() -> f64 {
    // SAFETY: sysconf takes a number and touches no memory of ours.
    let n = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if n > 0 { n as f64 } else { 100.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 310 42 0 0 20 0";
        assert_eq!(ticks(stat), Some(352));
        assert_eq!(ticks("7 (a"), None);
        assert!(cpu_s(std::process::id()).is_ok());
    }
}
