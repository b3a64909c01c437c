//! `cargo xtask bench ofi [PROVIDER [NIC...]]`: what an exchange costs over a libfabric provider,
//! chapter by chapter, beside libfabric alone and our own TCP fabric, in turns.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{example, pair::write, table::Table};

/// Runs it, prints a table for each size, and writes `target/bench/ofi.json`. `args` are the
/// provider, `tcp;ofi_rxm` where there is none, and domains or addresses of its NICs.
///
/// # Errors
/// The program cannot be built or run: among others where there is no libfabric.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    let text = example(root, "fabric", "ofi_bench", args)?;
    let rows = serde_json::Deserializer::from_slice(&text).into_iter();
    let rows: Vec<Value> = rows
        .collect::<Result<_, _>>()
        .context("reading what the example ofi_bench printed")?;
    for of_size in rows.chunk_by(|a, b| a["bytes"] == b["bytes"]) {
        println!(
            "\n{} bytes there, 8 back, 32 in flight on each NIC; per exchange:",
            of_size[0]["bytes"]
        );
        let table = Table::new(&[
            ("", 42),
            ("1/s", 10),
            ("GB/s", 7),
            ("CPU us", 8),
            ("posts", 6),
            ("looks", 6),
            ("compl.", 6),
        ]);
        for row in of_size {
            let number = |key: &str, digits: usize| {
                let value = row[key].as_f64().unwrap_or_default();
                format!("{value:.digits$}")
            };
            table.row([
                row["name"].as_str().unwrap_or_default().to_owned(),
                number("per_second", 0),
                number("gigabytes_per_second", 3),
                number("cpu_us", 2),
                number("posts", 2),
                number("looks", 2),
                number("completions", 2),
            ]);
        }
    }
    write(root, "ofi", &rows)
}
