//! `cargo xtask bench ofi [PROVIDER [NIC...]]`: what an exchange costs over a libfabric provider,
//! chapter by chapter, beside libfabric alone and our own TCP fabric, in turns.
//!
//! `cargo xtask bench ofi --speed [PROVIDER [ADDRESS]]`: writes of 150,528 bytes beside a C program
//! that does what libfabric's own `fi_rma_bw` does (`xtask/ofi/rma.c`), in turns.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Runs it, prints a table for each size, and writes `target/bench/ofi.json`. `args` are the
/// provider, `tcp;ofi_rxm` where there is none, and domains or addresses of its NICs.
///
/// # Errors
///
/// When the program cannot be built or run: among others where there is no libfabric.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    if args.first().is_some_and(|a| a == "--speed") {
        return speed(root, &args[1..]);
    }
    let rows = example(root, args)?;
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
    keep(root, "ofi.json", &rows)
}

/// The C program, compiled, beside our fabrics.
fn speed(root: &Path, args: &[OsString]) -> Result<()> {
    let folder = root.join("target/bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let program = folder.join("ofi-rma");
    let compiled = Command::new("cc")
        .current_dir(root)
        .args(["-O2", "-o"])
        .arg(&program)
        .args(["xtask/ofi/rma.c", "-lfabric", "-lpthread"])
        .status()
        .context("running cc")?;
    ensure!(
        compiled.success(),
        "xtask/ofi/rma.c does not compile: it needs libfabric's headers (Debian: libfabric-dev)"
    );
    let words = [OsString::from("--speed"), program.into_os_string()];
    let rows = example(root, &[&words, args].concat())?;
    println!(
        "150,528 bytes, 32 under way, pinned; medians of the turns, ratios with their quartiles:\n\
         {:<30} {:>8} {:>8} {:>7} {:>19} {:>22} {:>6} {:>6}",
        "", "1/s", "GB/s", "CPU us", "rate", "CPU", "posts", "looks"
    );
    for row in &rows {
        let ratio = |key| {
            let at = |i: usize| row[key][i].as_f64().unwrap_or_default();
            format!("{:.2} ({:.2}..{:.2})", at(0), at(1), at(2))
        };
        println!(
            "{:<30} {:>8.0} {:>8.3} {:>7.2} {:>19} {:>22} {:>6.2} {:>6.2}",
            row["name"].as_str().unwrap_or_default(),
            number(row, "per_second"),
            number(row, "per_second") * 150_528.0 / 1e9,
            number(row, "cpu_us"),
            ratio("ratio"),
            ratio("cpu_ratio"),
            number(row, "posts"),
            number(row, "looks"),
        );
    }
    keep(root, "ofi-speed.json", &rows)
}

/// Runs the example, and returns its rows.
fn example(root: &Path, args: &[OsString]) -> Result<Vec<Value>> {
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
    text.lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .context("reading what the example ofi_bench printed")
}

fn keep(root: &Path, name: &str, rows: &[Value]) -> Result<()> {
    let folder = root.join("target/bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let file = folder.join(name);
    let text = serde_json::to_string_pretty(rows)?;
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    println!("\nwritten to {}", file.display());
    Ok(())
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_default()
}
