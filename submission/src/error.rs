//! Errors that stop a command. A defect of a tree is a [`crate::rules::Finding`] instead.

use std::{fs, io, path::Path, path::PathBuf};

use serde::{Serialize, de::DeserializeOwned};

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file that cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file whose content is invalid.
    #[error("{}: {what}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with the content.
        what: String,
    },
    /// Wrong usage.
    #[error("{0}")]
    Usage(String),
}

/// Reads a text file. Bytes that are not UTF-8 become U+FFFD, because LoadGen does not escape them.
///
/// # Errors
/// [`Error::Read`]: the file cannot be read.
pub fn read(path: &Path) -> Result<String, Error> {
    let bytes = fs::read(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a text file and rejects bytes that are not UTF-8, since its text goes into other
/// documents.
fn document(path: &Path) -> Result<String, Error> {
    let bytes = fs::read(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        Error::Content {
            path: path.to_owned(),
            what: format!("line {line} is not UTF-8: save the file as UTF-8"),
        }
    })
}

/// Writes a file and creates the folders above it.
///
/// # Errors
/// [`Error::Write`]: a folder or the file cannot be written.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), Error> {
    let failed = |source| Error::Write {
        path: path.to_owned(),
        source,
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(path, bytes).map_err(failed)
}

/// Copies a file and creates the folders above the copy.
///
/// # Errors
/// [`Error::Read`]: `from` cannot be read. [`Error::Write`]: `to` cannot be written.
pub fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let bytes = fs::read(from).map_err(|source| Error::Read {
        path: from.to_owned(),
        source,
    })?;
    write(to, bytes)
}

/// Reads a JSON file.
///
/// # Errors
/// [`Error::Read`]: the file cannot be read. [`Error::Content`]: it is not UTF-8, or not a
/// `T`.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    serde_json::from_str(&document(path)?).map_err(|e| Error::Content {
        path: path.to_owned(),
        what: e.to_string(),
    })
}

/// Writes indented JSON with a newline at its end.
///
/// # Errors
/// [`Error::Write`]: `value` cannot be serialized, or the file cannot be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let mut text = serde_json::to_string_pretty(value).map_err(|e| Error::Write {
        path: path.to_owned(),
        source: io::Error::other(e),
    })?;
    text.push('\n');
    write(path, text)
}

/// Reads a YAML file.
///
/// # Errors
/// [`Error::Read`]: the file cannot be read. [`Error::Content`]: it is not UTF-8, or not a
/// `T`.
pub fn read_yaml<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    yaml(&document(path)?).map_err(|what| Error::Content {
        path: path.to_owned(),
        what,
    })
}

/// Parses YAML. The error is the parser's first line.
pub(crate) fn yaml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let text = e.to_string();
        text.lines().next().unwrap_or_default().to_owned()
    })
}
