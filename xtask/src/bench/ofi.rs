//! `cargo xtask bench ofi [PROVIDER [NIC...]]`: what an exchange costs over a libfabric provider,
//! chapter by chapter, beside libfabric alone and our own TCP fabric, in turns.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Runs it, prints a table for each size, and writes `target/bench/ofi.json`. `args` are the
/// provider, `tcp;ofi_rxm` where there is none, and domains or addresses of its NICs.
///
/// # Errors
///
/// When the program cannot be built or run: among others where there is no libfabric.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root)
        .args(["run", "--quiet", "--release", "--locked"])
        .args(["-p", "qdl", "--example", "ofi_bench", "--"])
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo")?;
    if !output.status.success() {
        bail!("the example ofi_bench of qdl failed");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<Value> = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .context("reading what the example ofi_bench printed")?;
    let mut size = None;
    for row in &rows {
        if size != Some(&row["bytes"]) {
            size = Some(&row["bytes"]);
            println!(
                "\n{} bytes there, 8 back, 32 in flight on each NIC; per exchange:\n{:<42} {:>10} {:>7} {:>8} {:>6} {:>6} {:>6}",
                row["bytes"], "", "1/s", "GB/s", "CPU us", "posts", "looks", "compl."
            );
        }
        println!(
            "{:<42} {:>10.0} {:>7.3} {:>8.2} {:>6.2} {:>6.2} {:>6.2}",
            row["name"].as_str().unwrap_or_default(),
            number(row, "per_second"),
            number(row, "gigabytes_per_second"),
            number(row, "cpu_us"),
            number(row, "posts"),
            number(row, "looks"),
            number(row, "completions"),
        );
    }
    let folder = root.join("target/bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let file = folder.join("ofi.json");
    let text = serde_json::to_string_pretty(&rows)?;
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    println!("\nwritten to {}", file.display());
    Ok(())
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_default()
}
