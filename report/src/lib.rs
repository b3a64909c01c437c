//! Draws a run as one HTML file, and compares several runs in one. `docs/report.md` explains each
//! picture.
//!
//! Tables and bars are HTML. Lines over time and percentiles are JSON in the page, which the page's
//! script draws. The page is made from a run's folder and names what the folder lacks. It contains
//! the run's files, so [`Run::read_all`] can read the run back from the page.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`run`] | a run, read from its folder or its page |
//! | [`chart`] | charts as data |
//! | [`mod@html`] | escaping, tables, bars, headings |
//! | [`pictures`] | the pictures of a run |
//! | [`advice`] | what limited the run, and which settings to change |
//! | [`page`] | the whole page of one run |
//! | [`live`] | the page of a run in progress |
//! | [`compare`] | groups of runs, their differences, and whether these exceed noise |
//! | [`command()`] | `qdl report` |

mod advice;
mod chart;
mod command;
mod compare;
mod html;
mod live;
mod page;
mod pictures;
mod run;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

pub use command::{Outcome, ReportArgs, command};
pub use live::{Over, SoFar, State, so_far};
pub use run::{ReadError, Run};

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
pub fn html(runs: &[Run]) -> String {
    match runs {
        [one] => page::of(one),
        several => compare::page(several),
    }
}

/// Writes the page of the run in `folder` into that folder, and returns the page's path.
///
/// # Errors [`Error`] names the file: the run cannot be read, or the page cannot be written.
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

/// The script of every page, as elements. It draws the charts of the document, and defines
/// `drawCharts()`, which draws charts added since.
pub fn script() -> String {
    page::script()
}
