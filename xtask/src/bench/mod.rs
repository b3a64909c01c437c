//! `cargo xtask bench`: what it costs, beside what it might have cost.
//!
//! Each measurement is a program of its own crate, built in release, that prints a table and writes
//! its rows to `target/bench/NAME.json`.

mod defaults;
mod failover;
mod idle;
mod limits;
mod loadgen;
mod local;
mod ofi;
mod pair;
#[path = "../../../bench/src/table.rs"]
mod table;
mod verbs;

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::demo::programs;
use crate::process;

/// How long a release build may take on a small machine.
const BUILD: Duration = Duration::from_secs(3600);
/// How long a measurement may take.
const MEASURE: Duration = Duration::from_secs(3600);

/// The measurements by name.
const NAMES: &str = "defaults, fabric, failover, idle, limits, loadgen, local, models, ofi, \
                         rails, verbs";

/// Runs the measurement of this name, with its own arguments.
///
/// # Errors
/// There is none of this name, it cannot be built, or it failed.
pub fn run(root: &Path, name: &str, args: &[OsString]) -> Result<()> {
    let takes_none = || {
        ensure!(args.is_empty(), "bench {name} takes no arguments");
        Ok(())
    };
    match name {
        "defaults" => defaults::run(root, args),
        "fabric" | "rails" => run_own(root, name, args, &[]),
        "failover" => failover::run(root, args),
        "idle" => takes_none().and_then(|()| idle::run(root)),
        "limits" => limits::run(root, args),
        "loadgen" => takes_none().and_then(|()| loadgen::run(root)),
        "local" => takes_none().and_then(|()| local::run(root)),
        "models" => {
            let programs = programs::build(root, programs::Profile::Release)?;
            let args = [&["--programs".into(), programs.into()], args].concat();
            run_own(root, name, &args, &["--features", "models"])
        }
        "ofi" => ofi::run(root, args),
        "verbs" => takes_none().and_then(|()| verbs::run(root)),
        _ => bail!("no measurement is called {name}; there are: {NAMES}"),
    }
}

/// Builds the measurements' own crate in release, with these arguments more.
fn build_own(root: &Path, more: &[&str]) -> Result<()> {
    let mut build = process::cargo(root);
    build.args(["build", "--release", "--locked", "--package", "qdl-bench"]);
    build.args(more);
    let status = process::run("cargo build", &mut build, BUILD)?;
    ensure!(status.success(), "cargo build: {status}");
    Ok(())
}

/// Builds it so and runs one of its commands.
fn run_own(root: &Path, name: &str, args: &[OsString], more: &[&str]) -> Result<()> {
    build_own(root, more)?;
    let json = pair::results(root)?.join(format!("{name}.json"));
    let mut bench = Command::new(process::target(root).join("release/qdl-bench"));
    bench
        .current_dir(root)
        .arg(name)
        .arg("--json")
        .arg(&json)
        .args(args);
    let status = process::run(name, &mut bench, MEASURE)?;
    ensure!(status.success(), "bench {name}: {status}");
    println!("rows: target/bench/{name}.json");
    Ok(())
}

/// Runs an example of a package in release; returns what it prints.
fn example(root: &Path, package: &str, example: &str, args: &[OsString]) -> Result<Vec<u8>> {
    let mut cargo = process::cargo(root);
    cargo
        .args([
            "run",
            "--quiet",
            "--release",
            "--locked",
            "--features",
            "stub",
        ])
        .args(["--package", package, "--example", example, "--"])
        .args(args)
        .stderr(Stdio::inherit());
    let output = cargo.output().context("cargo run")?;
    let status = output.status;
    ensure!(
        status.success(),
        "the example {example} of {package} failed: {status}"
    );
    Ok(output.stdout)
}
