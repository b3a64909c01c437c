//! `cargo xtask bench limits [--runs N] [--programs FOLDER] [NAME ...]`: does the summary's last
//! line name what limited a run, and the page's advice, first? Each cause is planted with the real
//! programs, several times, and runs that are well stand beside them. Shaped links take network
//! namespaces, and so root.

mod plants;
mod run;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::pair::write;
use crate::demo::programs;
use plants::{PLANTS, Plant};
use run::Said;

/// Runs of each, where nothing else is said.
const RUNS: usize = 5;

/// What is asked for.
struct Asked {
    runs: usize,
    /// Where the programs are; they are built otherwise.
    programs: Option<PathBuf>,
    names: Vec<String>,
}

impl Asked {
    fn of(args: &[OsString]) -> Result<Self> {
        let mut asked = Asked {
            runs: RUNS,
            programs: None,
            names: Vec::new(),
        };
        let mut words = args.iter().map(|a| a.to_string_lossy().into_owned());
        while let Some(word) = words.next() {
            match word.as_str() {
                "--runs" => {
                    let n = words.next().context("--runs takes a number")?;
                    asked.runs = n.parse().with_context(|| format!("--runs {n}"))?;
                }
                "--programs" => {
                    let folder = words.next().context("--programs takes a folder")?;
                    asked.programs = Some(folder.into());
                }
                name if PLANTS.iter().any(|p| p.name == name) => asked.names.push(word),
                name => {
                    let all: Vec<_> = PLANTS.iter().map(|p| p.name).collect();
                    bail!(
                        "nothing is planted as {name}; there are: {}",
                        all.join(", ")
                    );
                }
            }
        }
        Ok(asked)
    }

    fn wants(&self, plant: &Plant) -> bool {
        self.names.is_empty() || self.names.iter().any(|n| n == plant.name)
    }
}

/// Prints the table and writes `target/bench/limits.json`.
///
/// # Errors
/// A program cannot be built or started, a run came to no result, or a line named something else.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    let asked = Asked::of(args)?;
    let programs = match &asked.programs {
        Some(folder) => root.join(folder),
        None => programs::build(root, programs::Profile::Release)?,
    };
    let mut rows = Vec::new();
    let mut missed = Vec::new();
    println!(
        "\n{:<16} {:<16} {:>8}",
        "planted", "is to be said", "said so"
    );
    for plant in PLANTS.iter().filter(|p| asked.wants(p)) {
        let said: Vec<Said> = (0..asked.runs)
            .map(|_| run::once(root, &programs, plant))
            .collect::<Result<_>>()
            .with_context(|| plant.name)?;
        let right = said
            .iter()
            .filter(|s| plant.is_right(&s.cause, &s.page))
            .count();
        println!(
            "{:<16} {:<16} {:>3} of {}",
            plant.name,
            plant.page,
            right,
            said.len()
        );
        // One of what was said, and all that was wrong.
        let wrong = said.iter().filter(|s| !plant.is_right(&s.cause, &s.page));
        let one = said.iter().find(|s| plant.is_right(&s.cause, &s.page));
        for s in one.into_iter().chain(wrong) {
            println!("    {} (page: {})", s.line, s.page);
        }
        if right < said.len() {
            missed.push(plant.name);
        }
        let all: Vec<Value> = said
            .into_iter()
            .map(|s| json!({"cause": s.cause, "page": s.page, "line": s.line, "limits": s.limits}))
            .collect();
        rows.push(json!({
        "planted": plant.name, "expected": plant.cause, "page": plant.page,
        "right": right, "said": all,
        }));
    }
    write(root, "limits", &rows)?;
    ensure!(
        missed.is_empty(),
        "another cause was named: {}",
        missed.join(", ")
    );
    Ok(())
}
