//! A run's record for people: the summary on a terminal, the causes of its limits, its page, and
//! runs beside each other. A page is one file that opens from a disk and prints.
//! `docs/report.md` says what each picture shows.
//!
//! Tables and bars are HTML; lines over time and percentiles are JSON in the page, which its script
//! draws. All of it is made from a run's folder; the page says what is missing there. The page
//! holds the run's own files, and is read back as the run.
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
//! | [`live`] | a run that goes on |
//! | [`compare`] | several runs: groups, differences, whether they are more than noise |
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

use record::{ReadError, Run};

pub use command::{Outcome, ReportArgs, command};
pub use embedded::read_all;
pub use live::{Over, SoFar, State, so_far};

/// The page in a run's folder.
pub const FILE: &str = "report.html";

/// A page that was not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A run cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The page cannot be written.
    #[error("cannot write {}: {source}; check that the folder exists and has room", path.display())]
    Write {
        /// The page.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// The page of one run, or of several beside each other.
pub fn html(runs: &[Run]) -> String {
    match runs {
        [one] => page::of(one),
        several => compare::page(several),
    }
}

/// Writes the page of the run in `folder` into that folder; returns where it lies.
///
/// # Errors
/// [`Error`] names the file.
pub fn write(folder: &Path) -> Result<PathBuf, Error> {
    let run = Run::read(folder)?;
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

/// The script of every page, as elements: it draws the charts of the document, and defines
/// `drawCharts()`, which draws those that were added since.
pub fn script() -> String {
    page::script()
}
