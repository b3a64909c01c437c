//! `cargo xtask bench rails`: the rail simulator's tables and the cost of a decision.

use std::{path::Path, process::Command};

use anyhow::{Context, bail};

/// Builds and runs the simulator optimised, shows its
/// tables, and leaves them in `target/bench/rails.json`.
///
/// # Errors
/// When it cannot be built or does not succeed.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let json = root.join("target/bench/rails.json");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(root)
        .args([
            "run",
            "--release",
            "--locked",
            "-p",
            "qdl",
            "--example",
            "rails_sim",
            "--",
            "--json",
        ])
        .arg(&json)
        .status()
        .context("cargo could not be started")?;
    if !status.success() {
        bail!("the rail simulator ended with {status}");
    }
    println!("written to {}", json.display());
    Ok(())
}
