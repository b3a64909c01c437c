//! Errors that stop a command. A defect of a tree is a [`crate::rules::RuleFinding`] instead.

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

/// Why a command could not do its work: one line that names the file or the flag.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub(crate) String);

impl Error {
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |e| Error(format!("cannot read {}: {e}", path.display()))
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |e| Error(disk::cannot_write(path, &e))
    }

    pub(crate) fn content(path: &Path) -> impl FnOnce(String) -> Error {
        move |what| Error(format!("{}: {what}", path.display()))
    }
}

/// Reads a text file. Bytes that are not UTF-8 become U+FFFD, because LoadGen does not escape them.
pub fn read(path: &Path) -> Result<String, Error> {
    let bytes = bytes(path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a plain file.
pub fn bytes(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = loadgen_log::open_file(path).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(Error::read(path))?;
    Ok(bytes)
}

/// Reads a text file and rejects a byte order mark, and bytes that are not UTF-8, as it goes into
/// documents.
fn document(path: &Path, bytes: Vec<u8>) -> Result<String, Error> {
    let marks: [&[u8]; 3] = [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"];
    if marks.iter().any(|mark| bytes.starts_with(mark)) {
        let what = "it begins with a byte order mark: save the file as UTF-8 without one";
        return Err(Error::content(path)(what.to_owned()));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        format!("line {line} is not UTF-8: save the file as UTF-8")
    });
    text.map_err(Error::content(path))
}

/// Writes a file and creates the folders above it.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), Error> {
    disk::write_below(path, bytes).map_err(Error)
}

/// Copies a file and creates the folders above the copy.
pub fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    write(to, bytes(from)?)
}

/// Reads a JSON file in UTF-8.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let value = serde_json::from_str(&document(path, bytes(path)?)?);
    value.map_err(|e| Error::content(path)(e.to_string()))
}

/// Writes indented JSON with a newline at its end.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|e| Error::content(path)(e.to_string()))?;
    write(path, text + "\n")
}

/// Reads a YAML file in UTF-8 that the user names, which may be a pipe.
pub fn read_yaml<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let bytes = fs::read(path).map_err(Error::read(path))?;
    yaml(&document(path, bytes)?).map_err(Error::content(path))
}

/// Parses YAML. An error is the first line of the parser's message.
pub(crate) fn yaml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let text = e.to_string();
        text.lines().next().unwrap_or_default().to_owned()
    })
}
