//! The page of a run, one file that opens from a disk and prints; and runs beside each other.
//! `docs/report.md` says what each picture shows.
//!
//! Tables and bars are HTML; lines over time and percentiles are JSON in the page, which its script
//! draws. All of it is made from a run's folder; the page says what is missing there. The page
//! holds the run's own files, and is read back as the run.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`run`] | a run as its folder, or its page, has it |
//! | [`chart`] | charts as data |
//! | [`mod@html`] | escaping, tables, bars, headings |
//! | [`pictures`] | what each picture shows |
//! | [`advice`] | what limited the run, and what to turn |
//! | [`page`] | the whole page of one run |
//! | [`live`] | a run that goes on |
//! | [`compare`] | several runs: groups, differences, whether they are more than noise |
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
