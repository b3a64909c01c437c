//! `cargo xtask bench`: what it costs, beside what it might have cost.
//!
//! Each measurement is a program of its own crate, built in release, that prints a table and writes
//! its rows to `target/bench/NAME.json`.

mod core;
mod defaults;
mod fabric;
mod failover;
mod feed;
mod idle;
mod limits;
mod live;
mod llm;
mod loadgen;
mod local;
mod models;
mod ofi;
mod pair;
mod rails;
mod search;
mod verbs;
mod warm_up;

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process;

/// How long a release build may take on a small machine.
const BUILD: Duration = Duration::from_secs(3600);
/// How long a measurement may take.
const MEASURE: Duration = Duration::from_secs(3600);

/// Runs the measurement of this name, with its own arguments.
///
/// # Errors
/// There is none of this name, it cannot be built, or it failed.
pub fn run(root: &Path, name: &str, args: &[OsString]) -> Result<()> {
    match name {
        "core" => core::run(root, args),
        "defaults" => defaults::run(root, args),
        "fabric" => fabric::run(root, args),
        "failover" => failover::run(root, args),
        "feed" => feed::run(root, args),
        "idle" => {
            ensure!(args.is_empty(), "bench idle takes no arguments");
            idle::run(root)
        }
        "large" => run_own(root, "large", args),
        "limits" => limits::run(root, args),
        "loadgen" => {
            let only = args.first().and_then(|a| a.to_str());
            match (only, args.len()) {
                (None, 0) => loadgen::run(root),
                (Some("find-peak"), 1) => loadgen::run_find_peak(root),
                _ => bail!("bench loadgen takes no arguments, or the word find-peak"),
            }
        }
        "live" => {
            let turns = args.first().and_then(|a| a.to_str()?.parse().ok());
            ensure!(
                args.len() == usize::from(turns.is_some()),
                "bench live takes no arguments, or a number of turns"
            );
            live::run(root, turns)
        }
        "llm" => {
            ensure!(args.is_empty(), "bench llm takes no arguments");
            llm::run(root)
        }
        "local" => {
            ensure!(args.is_empty(), "bench local takes no arguments");
            local::run(root)
        }
        "models" => models::run(root, args),
        "ofi" => ofi::run(root, args),
        "parts" => run_own(root, "parts", args),
        "rails" => rails::run(root, args),
        "verbs" => {
            ensure!(args.is_empty(), "bench verbs takes no arguments");
            verbs::run(root)
        }
        "warm-up" => {
            ensure!(args.is_empty(), "bench warm-up takes no arguments");
            warm_up::run(root)
        }
        _ => bail!(
            "no measurement is called {name}; there are: core, defaults, fabric, failover, feed, idle, large, limits, live, llm, loadgen, local, models, ofi, parts, rails, verbs, warm-up"
        ),
    }
}

/// Builds the measurements' own crate in release and runs one of its commands.
fn run_own(root: &Path, name: &str, args: &[OsString]) -> Result<()> {
    run_own_with(root, name, args, &[])
}

/// Builds it with these arguments more.
fn build_own(root: &Path, more: &[&str]) -> Result<()> {
    let mut build = process::cargo(root);
    build.args(["build", "--release", "--locked", "--package", "qdl-bench"]);
    build.args(more);
    let status = process::run("cargo build", &mut build, BUILD)?;
    ensure!(status.success(), "cargo build: {status}");
    Ok(())
}

/// The same, built with these arguments more.
fn run_own_with(root: &Path, name: &str, args: &[OsString], more: &[&str]) -> Result<()> {
    build_own(root, more)?;
    let target = process::target(root);
    let results = root.join("target/bench");
    std::fs::create_dir_all(&results).with_context(|| results.display().to_string())?;
    let json = results.join(format!("{name}.json"));
    let mut bench = Command::new(target.join("release/qdl-bench"));
    bench
        .current_dir(root)
        .arg(name)
        .arg("--json")
        .arg(&json)
        .args(args);
    let status = process::run(name, &mut bench, MEASURE)?;
    ensure!(status.success(), "bench {name}: {status}");
    println!(
        "rows: {}",
        json.strip_prefix(root).unwrap_or(&json).display()
    );
    Ok(())
}
