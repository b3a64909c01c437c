//! `cargo xtask bench`: measures what the library costs, compared with a baseline.
//!
//! Each measurement is a release build of a program, prints a table, and writes its rows to
//! `target/bench/NAME.json`.

mod failover;
#[path = "../../../bench/src/table.rs"]
mod table;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo;

/// Limit for a release build on a small machine.
const BUILD: Duration = Duration::from_secs(3600);
const MEASURE: Duration = Duration::from_secs(3600);

pub fn run(root: &Path, name: &str, args: &[OsString]) -> Result<()> {
    match name {
        "fabric" => measure_fabric(root, args),
        "failover" => failover::run(root, args),
        _ => bail!("no measurement is called {name}; there are: fabric, failover"),
    }
}

fn measure_fabric(root: &Path, args: &[OsString]) -> Result<()> {
    let mut build = cargo::cargo(root);
    build.args(["build", "--release", "--locked", "--package", "qdl-bench"]);
    let status = launch::run("cargo build", &mut build, BUILD)?;
    ensure!(status.success(), "cargo build: {status}");
    let json = results(root, "fabric")?;
    let mut bench = Command::new(cargo::target(root).join("release/qdl-bench"));
    bench.current_dir(root).arg("--json").arg(&json).args(args);
    let status = launch::run("fabric", &mut bench, MEASURE)?;
    ensure!(status.success(), "bench fabric: {status}");
    println!("rows: {}", json.display());
    Ok(())
}

/// The file of a measurement's results. Creates its folder if it is missing.
fn results(root: &Path, name: &str) -> Result<PathBuf> {
    let folder = root.join("target/bench");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder.join(format!("{name}.json")))
}
