//! Who imports whom, read from the sources: no circle, and no arrow between rooms that the table in
//! `docs/architecture.md` does not allow.
//!
//! A *room* is a top-level module of a crate. What is compiled for tests alone is not looked at.
//! Three things are complaints:
//!
//! * a circle between the rooms of a crate, or within a room between its folders;
//! * an import between rooms of `qdl`, or a dependency between crates, that the table lacks;
//! * a room or a crate that the table lacks, and a row of the table that stands for nothing.
//!
//! | file | what it does |
//! | --- | --- |
//! | `krate` | the modules of a crate, and which file a path leads to |
//! | `imports` | the paths that a file names |
//! | `table` | the table of `docs/architecture.md` |
//! | `circles` | circles among arrows |
//! | `manifests` | which crates depend on which |

mod circles;
mod imports;
mod krate;
mod manifests;
mod table;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

use self::circles::{Arrow, circles};
use self::krate::Crate;
use self::table::Table;

/// Where the table is.
const TABLE: &str = "docs/architecture.md";

/// The crates whose rooms must not form circles.
const CRATES: &[&str] = &[
    "qdl",
    "accelerator",
    "frontend",
    "report",
    "tune",
    "verbs",
    "loadgen-bridge",
];

/// The crate whose rooms have a row each.
const LIBRARY: &str = "qdl";

/// What is wrong in the tree below `root`.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let text =
        std::fs::read_to_string(root.join(TABLE)).with_context(|| format!("reading {TABLE}"))?;
    let table = match Table::read(&text) {
        Ok(table) => table,
        Err(why) => return Ok(vec![format!("{TABLE}: {why}")]),
    };
    let members = manifests::members(root)?;
    let mut complaints = table.unknown_words(&members);
    for name in CRATES {
        let krate = Crate::read(root, name, &members)?;
        let arrows = krate.arrows();
        if *name == LIBRARY {
            complaints.extend(rooms(&table, &krate, &arrows.rooms));
        }
        complaints.extend(circles(&arrows.rooms, &format!("{name}::")));
        for inside in &arrows.inside {
            complaints.extend(circles(inside, &format!("{name}::")));
        }
    }
    complaints.extend(crates(&table, root, &members)?);
    Ok(complaints)
}

/// Arrows between rooms of the library, and rooms, that the table lacks.
fn rooms(table: &Table, krate: &Crate, arrows: &[Arrow]) -> Vec<String> {
    let mut complaints = Vec::new();
    let there: BTreeSet<String> = krate
        .rooms()
        .iter()
        .map(|room| format!("{LIBRARY}::{room}"))
        .collect();
    for room in &there {
        if table.row(room).is_none() {
            complaints.push(format!(
                "{TABLE}: the table of rooms has no row for `{room}`"
            ));
        }
    }
    for row in table.rows() {
        if row.starts_with(&format!("{LIBRARY}::")) && !there.contains(row) {
            complaints.push(format!("{TABLE}: there is no room `{row}`"));
        }
    }
    let mut said = BTreeSet::new();
    for arrow in arrows.iter().chain(&krate.foreign) {
        let to = if krate.foreign.contains(arrow) {
            arrow.to.clone()
        } else {
            format!("{LIBRARY}::{}", arrow.to)
        };
        let from = format!("{LIBRARY}::{}", arrow.from);
        let Some(knows) = table.row(&from) else {
            continue;
        };
        if !knows.allows(&to) && said.insert((from.clone(), to.clone())) {
            complaints.push(format!(
                "{}: `{from}` imports `{to}`; {TABLE} lets it know {knows}",
                arrow.place
            ));
        }
    }
    complaints
}

/// Dependencies between crates, and crates, that the table lacks.
fn crates(table: &Table, root: &Path, members: &[String]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for member in members {
        let (place, depends) = manifests::depends(root, member, members)?;
        // The library has a row for each room instead.
        let knows = if member == LIBRARY {
            Some(&table.of_library)
        } else {
            table.row(member)
        };
        let Some(knows) = knows else {
            complaints.push(format!(
                "{TABLE}: the table of rooms has no row for the crate `{member}`"
            ));
            continue;
        };
        for other in depends {
            if !knows.allows(&other) {
                complaints.push(format!(
                    "{place}: `{member}` depends on `{other}`; {TABLE} lets it know {knows}"
                ));
            }
        }
    }
    for row in table.rows() {
        if !row.contains("::") && !members.iter().any(|member| member == row) {
            complaints.push(format!("{TABLE}: there is no crate `{row}`"));
        }
    }
    Ok(complaints)
}

#[cfg(test)]
mod tests;
