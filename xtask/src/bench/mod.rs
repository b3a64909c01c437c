//! `cargo xtask bench`: measures what the library costs, compared with a baseline.
//!
//! Each measurement is a release build of a program, prints a table (`ofi`: JSON), and
//! writes its rows to `target/bench/NAME.json`.

mod defaults;
mod failover;
mod pair;
#[path = "../../../bench/src/table.rs"]
mod table;

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process;

/// Limit for a release build on a small machine.
const BUILD: Duration = Duration::from_secs(3600);
const MEASURE: Duration = Duration::from_secs(3600);

const NAMES: &str = "defaults, fabric, failover, ofi, rails";

pub fn run(root: &Path, name: &str, args: &[OsString]) -> Result<()> {
    match name {
        "defaults" => defaults::run(root, args),
        "fabric" | "rails" => run_own(root, name, args),
        "failover" => failover::run(root, args),
        "ofi" => measure_ofi(root, args),
        _ => bail!("no measurement is called {name}; there are: {NAMES}"),
    }
}

fn build_own(root: &Path) -> Result<()> {
    let mut build = process::cargo(root);
    build.args(["build", "--release", "--locked", "--package", "qdl-bench"]);
    let status = process::run("cargo build", &mut build, BUILD)?;
    ensure!(status.success(), "cargo build: {status}");
    Ok(())
}

/// Builds `qdl-bench` and runs one of its commands.
fn run_own(root: &Path, name: &str, args: &[OsString]) -> Result<()> {
    build_own(root)?;
    let json = pair::results(root, name)?;
    let mut bench = Command::new(process::target(root).join("release/qdl-bench"));
    bench.current_dir(root).args([name, "--json"]);
    bench.arg(&json).args(args);
    let status = process::run(name, &mut bench, MEASURE)?;
    ensure!(status.success(), "bench {name}: {status}");
    println!("rows: target/bench/{name}.json");
    Ok(())
}

/// Runs an example of `fabric` in release, which prints JSON objects: rows.
fn measure_ofi(root: &Path, args: &[OsString]) -> Result<()> {
    let mut cargo = process::cargo(root);
    cargo.args("run --quiet --release --locked --package fabric".split(' '));
    cargo.args(["--example", "ofi_bench", "--"]);
    let output = cargo.args(args).stderr(Stdio::inherit()).output();
    let output = output.context("cargo run")?;
    ensure!(output.status.success(), "ofi_bench: {}", output.status);
    let rows = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    let rows: Vec<Value> = rows.collect::<Result<_, _>>().context("not JSON")?;
    for row in &rows {
        println!("{row}");
    }
    pair::write(root, "ofi", &rows)
}
