//! The error of reading and writing the files of a run.

use std::{fmt, io, path::Path};

/// Why a file of a run cannot be read or written: one line with the path.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FileError(String);

impl FileError {
    /// For `map_err`: the system cannot read `path`.
    pub fn read(path: &Path) -> impl FnOnce(io::Error) -> FileError {
        let advice = "name the folder of a run, or a page that was made of one";
        move |e| FileError(format!("cannot read {}: {e}; {advice}", path.display()))
    }

    /// For `map_err`: the system cannot write `path`. `what` ends in a blank: `histograms to `.
    pub fn write(what: &str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
        let advice = "check that the folder exists and has room";
        move |e| {
            FileError(format!(
                "cannot write {what}{}: {e}; {advice}",
                path.display()
            ))
        }
    }

    /// For `map_err`: the content of `path` is invalid.
    pub fn content<E: fmt::Display>(path: &Path) -> impl FnOnce(E) -> FileError {
        move |why| FileError(format!("{}: {why}", path.display()))
    }
}
