//! `qdl endpoints check`: refuses drafts with holes, then calls MLCommons' own checker.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use clap::Args;

use super::template::FILL_IN;
use crate::error::{self, Error};

/// Most folders between the folder of a submission and a draft.
const DEEPEST: usize = 8;

/// Arguments of `qdl endpoints check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// The organization's folder of a submission, or a run's folder with drafts
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// MLCommons' command-line program
    #[arg(
        long,
        value_name = "PROGRAM",
        default_value = "endpoints-submission-cli"
    )]
    cli: PathBuf,
}

/// Lists the holes in drafts; without holes, runs `endpoints-submission-cli check-submission`.
/// Returns whether nothing is wrong.
///
/// # Errors
/// A draft cannot be read, or the program is not installed.
pub fn check(args: &CheckArgs) -> Result<bool, Error> {
    let mut holes = Vec::new();
    find_holes(&args.folder, DEEPEST, &mut holes)?;
    for hole in &holes {
        println!("{hole}");
    }
    if !holes.is_empty() {
        let count = holes.len();
        println!("{count} values are to be filled in; then MLCommons' checker runs too");
        return Ok(false);
    }
    let mut official = Command::new(&args.cli);
    let official = official.arg("check-submission").arg(&args.folder);
    let program = args.cli.display();
    match official.stdin(Stdio::null()).status() {
        Ok(status) => Ok(status.success()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Error(format!(
            "{program} is not installed: `pip install endpoints-submission-cli`, or name it with \
             --cli"
        ))),
        Err(e) => Err(Error(format!("{program} does not start: {e}"))),
    }
}

fn find_holes(folder: &Path, depth: usize, holes: &mut Vec<String>) -> Result<(), Error> {
    if !folder.is_dir() {
        return Err(Error(format!("{} is no folder", folder.display())));
    }
    for file in disk::files(folder) {
        if !["system_desc.json", "point.yaml", "network.md"].contains(&&*file) {
            continue;
        }
        let path = folder.join(file);
        let text = error::read(&path)?;
        let lines = text.lines().enumerate();
        let open = lines.filter(|(_, line)| line.contains(FILL_IN) && !line.starts_with('#'));
        holes.extend(open.map(|(n, line)| {
            let line = line.trim().trim_end_matches(',');
            format!("{}:{}: {line}", path.display(), n + 1)
        }));
    }
    if depth > 0 {
        for inner in disk::folders(folder) {
            find_holes(&folder.join(inner), depth - 1, holes)?;
        }
    }
    Ok(())
}
