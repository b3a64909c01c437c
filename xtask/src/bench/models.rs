//! `cargo xtask bench models`: the round's models in `configs/` with the engine `digest`, both
//! programs in release over loopback, beside plain sockets.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::process;

/// Builds the programs and the measurement, runs it, and writes `target/bench/models.json`.
///
/// # Errors
/// Something cannot be built, or a measurement failed or fell short.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    let mut build = process::cargo(root);
    build.args(["build", "--release", "--locked"]);
    build.args(["--package", "frontend", "--package", "accelerator"]);
    let status = process::run("cargo build", &mut build, super::BUILD)?;
    ensure!(status.success(), "cargo build: {status}");
    let mut all: Vec<OsString> = vec!["--programs".into()];
    all.push(process::target(root).join("release").into());
    all.extend(args.iter().cloned());
    super::run_own_with(root, "models", &all, &["--features", "feed"])
}
