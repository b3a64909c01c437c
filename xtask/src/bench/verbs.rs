//! `cargo xtask bench verbs`: what the software of the `ib` fabric costs for each work request. The
//! device is stubbed at the provider's table of operations, so a regression shows without a NIC.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{example, pair::write};

/// Package, example, and what it measures.
const PROGRAMS: &[(&str, &str, &str)] = &[
    (
        "qdl",
        "ib_posting_cost",
        "the fabric: post, flush, and the peer's poll",
    ),
];

/// Runs the measurements, prints a table, and writes `target/bench/verbs.json`.
///
/// # Errors
/// A program cannot be built or run, or anything on the way of a work request allocated.
pub fn run(root: &Path) -> Result<()> {
    let mut all = serde_json::Map::new();
    let mut allocated = Vec::new();
    for (package, name, about) in PROGRAMS {
        let figures: Value = serde_json::from_slice(&example(root, package, name, &[])?)
            .with_context(|| format!("reading what the example {name} of {package} printed"))?;
        println!("\n{name}: {about}, in ns for each write");
        for (case, values) in figures.as_object().context("an object of cases")? {
            let values = values.as_object().context("an object of figures")?;
            let text: Vec<_> = values.iter().map(|(k, v)| format!("{k} {v}")).collect();
            println!("  {case:<12} {}", text.join(", "));
            if values.get("allocations") != Some(&Value::from(0)) {
                allocated.push(format!("{name} {case}"));
            }
        }
        all.insert((*name).to_owned(), figures);
    }
    write(root, "verbs", &all)?;
    ensure!(
        allocated.is_empty(),
        "nothing may allocate on the way of a work request, and this did: {}",
        allocated.join(", ")
    );
    Ok(())
}
