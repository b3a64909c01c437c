//! The command `qdl report`.

use std::path::PathBuf;

use clap::Parser;

use record::{FileError, RunFolder};

use crate::{FILE, html, put, read_all};

/// Draws the page of one run, or one page that compares several runs.
///
/// DIR is a run folder, or the page of an earlier `report`, which contains its runs. Runs with the
/// same settings count as repetitions of one run.
#[derive(Clone, Debug, Parser)]
pub struct ReportArgs {
    /// Run folders, or pages
    #[arg(required = true, value_name = "DIR")]
    runs: Vec<PathBuf>,

    /// File for the page [default: report.html in the run folder; for several runs compare.html in
    /// the working directory]
    #[arg(short, long, alias = "out", value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Makes the page, and prints its path unless `quiet`.
///
/// # Errors
/// [`FileError`] names the file: a run cannot be read, or the page cannot be written.
pub fn command(args: &ReportArgs, quiet: bool) -> Result<(), FileError> {
    let runs = args.runs.iter().map(|path| read_all(path));
    let runs: Vec<Vec<RunFolder>> = runs.collect::<Result<_, _>>()?;
    let runs = runs.concat();
    let out = match (&args.output, &args.runs[..]) {
        (Some(out), _) => out.clone(),
        (None, [one]) if one.is_dir() => one.join(FILE),
        (None, [_]) => PathBuf::from(FILE),
        (None, _) => PathBuf::from("compare.html"),
    };
    put(&out, &html(&runs))?;
    if !quiet {
        println!("{}", out.display());
    }
    Ok(())
}
