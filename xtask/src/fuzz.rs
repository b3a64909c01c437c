//! `cargo xtask fuzz`: builds and runs the fuzz targets in `fuzz/` with the workspace's toolchain,
//! without cargo-fuzz. The targets also run under cargo-fuzz.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cargo;

const BUILD: Duration = Duration::from_secs(3600);
/// Time that a target may run beyond `seconds`: for its start and its last input.
const LATE: Duration = Duration::from_secs(120);
/// Folder of inputs that libFuzzer finds, below `fuzz/`.
const CORPUS: &str = "corpus";

/// Compiler flags that libFuzzer needs: counters of edges and comparisons, and AddressSanitizer.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
    "-Zsanitizer=address",
    "--cfg=fuzzing",
];

const TARGETS: &[&str] = &[
    "arrays",
    "control_frames",
    "data_frames",
    "handshake",
    "loadgen_conf",
    "responses",
    "server_events",
    "yaml",
];

/// Runs one target, or each, for `seconds`. Inputs that crash a target go to `fuzz/artifacts`.
pub fn run(root: &Path, only: Option<&str>, seconds: u64) -> Result<()> {
    let chosen: Vec<&str> = match only {
        Some(name) => {
            let all = TARGETS.join(", ");
            let known = TARGETS.iter().find(|t| **t == name);
            vec![known.with_context(|| format!("no target is called {name}; there are: {all}"))?]
        }
        None => TARGETS.to_vec(),
    };
    let folder = root.join("fuzz");
    let machine = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut build = cargo::cargo(root);
    build
        .current_dir(&folder)
        .args(["build", "--release", "--locked", "--target", &machine])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .env("RUSTFLAGS", FLAGS.join(" "));
    let status = launch::run("cargo build", &mut build, BUILD)?;
    ensure!(status.success(), "the fuzz targets do not build: {status}");
    for target in chosen {
        let (corpus, artifacts) = (
            folder.join(CORPUS).join(target),
            folder.join("artifacts").join(target),
        );
        std::fs::create_dir_all(&corpus)?;
        std::fs::create_dir_all(&artifacts)?;
        println!("\n== fuzz {target}, {seconds} s");
        let program = folder
            .join("target")
            .join(&machine)
            .join("release")
            .join(target);
        let mut command = Command::new(program);
        command
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .args(["-timeout=20", "-print_final_stats=1", "-verbosity=0"])
            .arg(&corpus)
            .current_dir(&folder);
        command.arg(folder.join("seeds").join(target));
        if target == "yaml" {
            command.arg(root.join("configs"));
        }
        let status = launch::run(target, &mut command, Duration::from_secs(seconds) + LATE)?;
        ensure!(
            status.success(),
            "{target}: {status}; the input is in {}",
            artifacts.display()
        );
    }
    Ok(())
}
