//! The command `qdl report`.

use std::{
    io::{Write, stdout},
    path::{Path, PathBuf},
};

use clap::Parser;

use record::{FileError, RunFolder};

use crate::{FILE, export, html, pareto, put, read_all};

/// Draws the page of one run, or one page that compares several runs. Or writes runs as rows.
///
/// DIR is a run folder, or the page of an earlier `report`, which contains its runs. Runs with the
/// same settings count as repetitions of one run.
#[derive(Clone, Debug, Parser)]
pub struct ReportArgs {
    /// Run folders, or pages
    #[arg(required = true, value_name = "DIR")]
    runs: Vec<PathBuf>,

    /// File for the output [default: report.html in the run folder; for several runs compare.html
    /// or pareto.html in the working directory; rows go to standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Draw throughput against p99 latency, TTFT and TPOT of several runs of one scenario
    #[arg(long, conflicts_with_all = ["csv", "jsonl"])]
    pareto: bool,

    /// Write a row for each second of each run as CSV, instead of a page
    #[arg(long, conflicts_with = "jsonl")]
    csv: bool,

    /// Write a JSON line for each second, then one for each of the slowest samples
    #[arg(long)]
    jsonl: bool,
}

/// Makes the page, and prints its path unless `quiet`. Or writes rows, by default to standard
/// output.
///
/// # Errors
/// [`FileError`] names the file: a run cannot be read, lacks what the output needs, or the output
/// cannot be written.
pub fn command(args: &ReportArgs, quiet: bool) -> Result<(), FileError> {
    let runs = args.runs.iter().map(|path| read_all(path));
    let runs: Vec<Vec<RunFolder>> = runs.collect::<Result<_, _>>()?;
    let runs = runs.concat();
    let rows = match (args.csv, args.jsonl) {
        (true, _) => Some(export::csv(&runs)?),
        (_, true) => Some(export::json_lines(&runs)?),
        _ => None,
    };
    if let (Some(rows), None) = (&rows, &args.output) {
        // Ignore the error: standard output may be closed.
        let _ = stdout().write_all(rows.as_bytes());
        return Ok(());
    }
    let out = match (&args.output, &args.runs[..]) {
        (Some(out), _) => out.clone(),
        (None, _) if args.pareto => PathBuf::from("pareto.html"),
        (None, [one]) if one.is_dir() => one.join(FILE),
        (None, [_]) => PathBuf::from(FILE),
        (None, _) => PathBuf::from("compare.html"),
    };
    let text = match rows {
        Some(rows) => rows,
        None if args.pareto => {
            let first = args.runs.first().map_or(Path::new(""), PathBuf::as_path);
            pareto::page(&runs).map_err(FileError::content(first))?
        }
        None => html(&runs),
    };
    put(&out, &text)?;
    if !quiet {
        println!("{}", out.display());
    }
    Ok(())
}
