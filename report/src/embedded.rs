//! Embeds a run in its page, and reads it back: the files of its folder as JSON, gzip and base64 in
//! one element.

use std::{
    fs,
    io::{Read, Write},
    path::Path,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use record::{FileError, RunFolder};

/// Start of the element.
const BEGINS: &str = "<script type=\"application/gzip\" class=\"record\">";
const ENDS: &str = "</script>";
/// Maximum size of a record's JSON in bytes, many times that of any run.
const MOST_BYTES: u64 = 1 << 30;

pub fn record(run: &RunFolder) -> String {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    // Serialization of plain data under text keys cannot fail, nor can writing into memory.
    let json = serde_json::to_vec(run).unwrap_or_default();
    let packed = gzip.write_all(&json).and_then(|()| gzip.finish());
    format!(
        "{BEGINS}{}{ENDS}",
        BASE64_STANDARD.encode(packed.unwrap_or_default())
    )
}

/// Reads a run's folder, or the runs that a page was made of.
///
/// # Errors
/// [`FileError`] names the file.
pub fn read_all(path: &Path) -> Result<Vec<RunFolder>, FileError> {
    if !path.is_file() {
        return Ok(vec![RunFolder::read(path)?]);
    }
    let page = fs::read_to_string(path).map_err(FileError::read(path))?;
    let runs: Vec<_> = page.split(BEGINS).skip(1).map(one).collect();
    if runs.is_empty() {
        let why =
            "there is no record of a run in it that this version reads; name the run's folder";
        return Err(FileError::content(path)(why));
    }
    let runs = runs.into_iter().collect::<Result<_, _>>();
    runs.map_err(FileError::content(path))
}

fn one(rest: &str) -> Result<RunFolder, String> {
    let wrong = |e: &dyn ToString| format!("its record cannot be read: {}", e.to_string());
    let packed = rest.split(ENDS).next().unwrap_or_default();
    let packed = BASE64_STANDARD.decode(packed).map_err(|e| wrong(&e))?;
    let json = GzDecoder::new(&packed[..]).take(MOST_BYTES);
    let mut run: RunFolder = serde_json::from_reader(json).map_err(|e| wrong(&e))?;
    run.open().map_err(|(_, why)| wrong(&why))?;
    Ok(run)
}
