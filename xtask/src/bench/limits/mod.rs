//! `cargo xtask bench limits [--runs N] [--programs FOLDER] [NAME ...]`: do the summary's last line
//! and the page's first card name what limited a run? Each cause is planted with the real programs,
//! and healthy runs of each engine stand beside them. Shaped links take network namespaces, and so
//! root.

mod run;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::pair::write;
use crate::demo::programs;
use run::{NOTHING, Said, Table};

/// Prints the table and writes `target/bench/limits.json`.
///
/// # Errors
/// A program cannot be built or started, a run came to no result, or a line named something else.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    let table: Table = serde_json::from_str(include_str!("plants.json")).context("plants.json")?;
    let (mut runs, mut folder, mut names) = (5, None, Vec::new());
    let mut words = args.iter().map(|a| a.to_string_lossy().into_owned());
    while let Some(word) = words.next() {
        match word.as_str() {
            "--runs" => runs = words.next().context("--runs takes a number")?.parse()?,
            "--programs" => folder = Some(words.next().context("--programs takes a folder")?),
            name if table.plants.iter().any(|p| p.name == name) => names.push(word),
            name => {
                let all: Vec<_> = table.plants.iter().map(|p| p.name.as_str()).collect();
                bail!(
                    "nothing is planted as {name}; there are: {}",
                    all.join(", ")
                );
            }
        }
    }
    let programs: PathBuf = match folder {
        Some(folder) => root.join(folder),
        None => programs::build(root, programs::Profile::Release)?,
    };
    let (mut rows, mut missed) = (Vec::new(), Vec::new());
    println!("\n{:<16} {:<16} {:>8}", "planted", "first card", "right");
    let chosen = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    for plant in table.plants.iter().filter(|p| chosen(&p.name)) {
        let said: Vec<Said> = (0..runs)
            .map(|_| run::once(root, &programs, &table, plant))
            .collect::<Result<_>>()
            .with_context(|| plant.name.clone())?;
        // One that was right, and all that were wrong.
        let (right, wrong): (Vec<_>, Vec<_>) = said.iter().partition(|s| s.is_right(plant));
        println!(
            "{:<16} {:<16} {:>3} of {runs}",
            plant.name,
            plant.card.as_deref().unwrap_or(NOTHING),
            right.len()
        );
        for s in right.iter().take(1).chain(&wrong) {
            println!("    {} (page: {})", s.line, s.card);
        }
        if !wrong.is_empty() {
            missed.push(plant.name.as_str());
        }
        let all = said.iter();
        let all = all.map(|s| json!({"card": s.card, "line": s.line, "limits": s.limits}));
        rows.push(json!({
            "planted": plant.name, "expected": plant.card, "right": right.len(),
            "said": all.collect::<Vec<_>>(),
        }));
    }
    write(root, "limits", &rows)?;
    let missed = missed.join(", ");
    ensure!(missed.is_empty(), "another cause was named: {missed}");
    Ok(())
}
