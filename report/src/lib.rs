//! A run's record for people: the summary on a terminal, the causes of its limits, its page, and
//! runs beside each other. A page is one file that opens from a disk and prints.
//! `docs/report.md` says what each picture shows.
//!
//! Tables and bars are HTML. Lines over time and percentiles are JSON in the page, which the page's
//! script draws. The page is made from a run's folder and names what the folder lacks. It contains
//! the run's files, so [`read_all`] can read the run back from the page.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`text`] | summaries as text, and numbers with units |
//! | [`causes`] | what limits a run, and the judge |
//! | `embedded` | a run into its page, and back out of it |
//! | `latency` | counts in a timeline's buckets, and their quantiles |
//! | [`chart`] | charts as data |
//! | [`mod@html`] | escaping, tables, bars, headings |
//! | [`pictures`] | what each picture shows |
//! | [`advice`] | the causes on the page |
//! | [`page`] | the whole page of one run |
//! | [`live`] | the page of a run in progress |
//! | [`compare`] | groups of runs, their differences, and whether these exceed noise |
//! | [`command()`] | `qdl report` |

mod advice;
pub mod causes;
mod chart;
mod command;
mod compare;
mod embedded;
mod html;
mod latency;
mod live;
mod page;
mod pictures;
pub mod text;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use record::{ReadError, RunFolder};

pub use command::{Outcome, ReportArgs, command};
pub use embedded::read_all;
pub use live::{RunEnd, SoFar, State, so_far};

/// File name of the page in a run's folder.
pub const FILE: &str = "report.html";

/// Why a page was not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A run cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The page cannot be written.
    #[error("cannot write {}: {source}; check that the folder exists and has room", path.display())]
    Write {
        /// Path of the page.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

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
/// [`Error`] names the file: the run cannot be read, or the page cannot be written.
pub fn write(folder: &Path) -> Result<PathBuf, Error> {
    let run = RunFolder::read(folder)?;
    let path = folder.join(FILE);
    put(&path, &html(&[run]))?;
    Ok(path)
}

fn put(path: &Path, page: &str) -> Result<(), Error> {
    fs::write(path, page).map_err(|source| Error::Write {
        path: path.to_owned(),
        source,
    })
}

/// The style sheet of every page.
pub fn style() -> &'static str {
    page::STYLE
}

/// The script of every page, as elements. It draws the charts of the document, and defines
/// `drawCharts()`, which draws charts added since.
pub fn script() -> String {
    page::script()
}
