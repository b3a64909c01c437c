//! A run's record for people: the summary on a terminal, the causes of its limits, its page, and
//! runs beside each other. A page is one file that opens from a disk and prints.
//! `docs/report.md` says what each picture shows.
//!
//! A report is sections of tables, facts, words and charts ([`view::model`]). [`view::terminal`]
//! and `html` render it. Lines over time and percentiles are JSON in the page, which the page's
//! script draws. The page is made from a run's folder and names what the folder lacks. It contains
//! the run's files: [`read_all`] reads the run back from the page.
//!
//! | module | purpose |
//! | --- | --- |
//! | `html` | a report as a page |
//! | [`mod@text`] | lines on losses and refusals |
//! | [`causes`] | what limits a run, and the judge |
//! | `embedded` | a run into its page, and back out of it |
//! | `latency` | counts in a timeline's buckets, and their quantiles |
//! | [`pictures`] | what each picture shows |
//! | [`page`] | the whole report of one run |
//! | [`screen()`] | the summary on a terminal |
//! | [`live`] | the page of a run in progress |
//! | [`compare`] | groups of runs, their differences, and whether these exceed noise |
//! | [`mod@pareto`] | throughput of runs against latency, with the front |
//! | [`tuning()`] | the page of a session of `qdl tune` |
//! | [`export`] | runs as CSV, and as JSON lines |
//! | [`command()`] | `qdl report` |

pub mod causes;
mod command;
mod compare;
mod embedded;
mod export;
mod html;
mod latency;
mod live;
mod page;
mod pareto;
mod pictures;
mod screen;
pub mod text;
mod tuning;

use std::path::{Path, PathBuf};

use record::{FileError, RunFolder};
use view::{chart, model, terminal};

pub use command::{ReportArgs, command};
pub use embedded::read_all;
pub use export::{csv, json_lines};
pub use live::{RunEnd, SoFar, State, so_far};
pub use page::{
    STYLE,
    head::{title, verdict},
    script,
};
pub use pareto::page as pareto;
pub use pictures::settings::rows as setting_rows;
pub use screen::screen;
pub use tuning::tuning;

/// File name of the page in a run's folder.
pub const FILE: &str = "report.html";

/// The page of one run, or the comparison of several.
pub fn html(runs: &[RunFolder]) -> String {
    match runs {
        [one] => page::of(one),
        several => compare::page(several),
    }
}

/// Writes the page of the run in `folder` into that folder, and returns the page's path.
///
/// # Errors
/// [`FileError`] names the file: the run cannot be read, or the page cannot be written.
pub fn write(folder: &Path) -> Result<PathBuf, FileError> {
    let run = RunFolder::read(folder)?;
    let path = folder.join(FILE);
    put(&path, &html(&[run]))?;
    Ok(path)
}

fn put(path: &Path, page: &str) -> Result<(), FileError> {
    disk::write(path, page).map_err(FileError::write("", path))
}
