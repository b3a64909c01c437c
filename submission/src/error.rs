//! What keeps a command from its work; what is wrong with a tree is a [`crate::rules::Finding`].

use std::{fs, io, path::Path, path::PathBuf};

use serde::{Serialize, de::DeserializeOwned};

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file that cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file that is not what it should be.
    #[error("{}: {what}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Wrong usage.
    #[error("{0}")]
    Usage(String),
}

/// Reads a file of text; bytes that are no UTF-8 become U+FFFD, as LoadGen escapes nothing.
///
/// # Errors
/// [`Error::Read`].
pub fn read(path: &Path) -> Result<String, Error> {
    let bytes = fs::read(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a document, whose words become other documents' words.
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

/// Writes a file and the folders above it.
///
/// # Errors
/// [`Error::Write`].
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

/// Copies a file and makes the folders above it.
///
/// # Errors
/// [`Error::Read`], [`Error::Write`].
pub fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let bytes = fs::read(from).map_err(|source| Error::Read {
        path: from.to_owned(),
        source,
    })?;
    write(to, bytes)
}

/// Reads JSON.
///
/// # Errors
/// [`Error::Read`], [`Error::Content`].
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    serde_json::from_str(&document(path)?).map_err(|e| Error::Content {
        path: path.to_owned(),
        what: e.to_string(),
    })
}

/// Writes JSON, indented, with a line's end behind it.
///
/// # Errors
/// [`Error::Write`].
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let mut text = serde_json::to_string_pretty(value).map_err(|e| Error::Write {
        path: path.to_owned(),
        source: io::Error::other(e),
    })?;
    text.push('\n');
    write(path, text)
}

/// Reads YAML.
///
/// # Errors
/// [`Error::Read`], [`Error::Content`].
pub fn read_yaml<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    yaml(&document(path)?).map_err(|what| Error::Content {
        path: path.to_owned(),
        what,
    })
}

/// YAML from text; what is wrong in one line.
pub(crate) fn yaml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let text = e.to_string();
        text.lines().next().unwrap_or_default().to_owned()
    })
}
