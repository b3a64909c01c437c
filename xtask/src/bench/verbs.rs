//! `cargo xtask bench verbs`: what the software of the `ib` fabric costs for each work request. The
//! device is stubbed at the provider's table of operations, so a regression shows without a NIC.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{example, pair::write};

/// The example of `qdl` that measures.
const NAME: &str = "ib_posting_cost";

/// Runs the measurement, prints a table, and writes `target/bench/verbs.json`.
///
/// # Errors
/// The example cannot be built or run, or anything on the way of a work request allocated.
pub fn run(root: &Path) -> Result<()> {
    let mut allocated = Vec::new();
    let figures: Value = serde_json::from_slice(&example(root, "qdl", NAME, &[])?)
        .with_context(|| format!("reading what the example {NAME} printed"))?;
    println!("\n{NAME}: post, flush, and the peer's poll, in ns for each write");
    for (case, values) in figures.as_object().context("an object of cases")? {
        let values = values.as_object().context("an object of figures")?;
        let text: Vec<_> = values.iter().map(|(k, v)| format!("{k} {v}")).collect();
        println!("  {case:<12} {}", text.join(", "));
        if values.get("allocations") != Some(&Value::from(0)) {
            allocated.push(case.as_str());
        }
    }
    write(root, "verbs", &serde_json::json!({NAME: figures}))?;
    ensure!(
        allocated.is_empty(),
        "nothing may allocate on the way of a work request, and this did: {}",
        allocated.join(", ")
    );
    Ok(())
}
