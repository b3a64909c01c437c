//! `cargo xtask bench verbs`: what the software of the `ib` fabric costs
//! for each work request, with the device stubbed at the provider's
//! table of operations, so that a regression shows without a NIC.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Package, example, and what it measures.
const PROGRAMS: &[(&str, &str, &str)] = &[
    (
        "verbs",
        "posting_cost",
        "the verbs layer: a chain of 64, one doorbell",
    ),
    (
        "qdl",
        "ib_posting_cost",
        "the fabric: post, flush, and the peer's poll",
    ),
];

/// Runs the measurements, prints a table, and writes `target/bench/verbs.json`.
///
/// # Errors
///
/// When a program cannot be built or run, or when anything on the way of a work request allocated.
pub fn run(root: &Path) -> Result<()> {
    let mut all = serde_json::Map::new();
    let mut allocated = Vec::new();
    for (package, example, about) in PROGRAMS {
        let figures = measure(root, package, example)?;
        println!("\n{example}: {about}, in ns for each write");
        for (case, values) in figures.as_object().context("an object of cases")? {
            let values = values.as_object().context("an object of figures")?;
            let text: Vec<_> = values.iter().map(|(k, v)| format!("{k} {v}")).collect();
            println!("  {case:<12} {}", text.join(", "));
            if values.get("allocations") != Some(&Value::from(0)) {
                allocated.push(format!("{example} {case}"));
            }
        }
        all.insert((*example).to_owned(), figures);
    }
    let folder = root.join("target/bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let file = folder.join("verbs.json");
    let text = serde_json::to_string_pretty(&Value::Object(all))?;
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    println!("\nwritten to {}", file.display());
    if !allocated.is_empty() {
        bail!(
            "nothing may allocate on the way of a work request, and this did: {}",
            allocated.join(", ")
        );
    }
    Ok(())
}

fn measure(root: &Path, package: &str, example: &str) -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root)
        .args([
            "run",
            "--quiet",
            "--release",
            "--locked",
            "--features",
            "stub",
        ])
        .args(["-p", package, "--example", example])
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo")?;
    if !output.status.success() {
        bail!("the example {example} of {package} failed");
    }
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("reading what the example {example} of {package} printed"))
}
