//! Embeds a run in its page, and reads it back: the files of its folder as JSON, gzip and base64 in
//! one element.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    path::Path,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use record::{Manifest, ReadError, RunFolder, Summary, timeline::Timeline};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Start of the element.
const BEGINS: &str = "<script type=\"application/gzip\" class=\"record\">";
/// End of the element.
const ENDS: &str = "</script>";
/// Maximum size of a record's JSON in bytes, many times that of any run.
const MOST_BYTES: u64 = 1 << 30;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    name: String,
    summary: Value,
    timeline: Option<Timeline>,
    /// The unchanged text of `latency.hlog`.
    hlog: Option<String>,
    run: Option<Manifest>,
    configurations: BTreeMap<String, Value>,
}

pub fn record(run: &RunFolder) -> String {
    let record = Record {
        name: run.name.clone(),
        summary: run.raw.clone(),
        timeline: run.timeline.clone(),
        hlog: run.hlog.clone(),
        run: run.manifest.clone(),
        configurations: run.configurations.clone(),
    };
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    // Serialization of plain data under text keys cannot fail, nor can writing into memory.
    let json = serde_json::to_vec(&record).unwrap_or_default();
    let packed = gzip.write_all(&json).and_then(|()| gzip.finish());
    format!(
        "{BEGINS}{}{ENDS}",
        BASE64_STANDARD.encode(packed.unwrap_or_default())
    )
}

/// Reads a run's folder, or the runs that a page was made of.
///
/// # Errors
/// [`ReadError`] names the file.
pub fn read_all(path: &Path) -> Result<Vec<RunFolder>, ReadError> {
    if !path.is_file() {
        return Ok(vec![RunFolder::read(path)?]);
    }
    let page = fs::read_to_string(path).map_err(|source| ReadError::Io {
        path: path.to_owned(),
        source,
    })?;
    read(&page).map_err(|why| ReadError::Content {
        path: path.to_owned(),
        why,
    })
}

pub fn read(page: &str) -> Result<Vec<RunFolder>, String> {
    let records: Vec<&str> = page.split(BEGINS).skip(1).collect();
    if records.is_empty() {
        return Err(
            "there is no record of a run in it that this version reads; name the run's folder"
                .to_owned(),
        );
    }
    records.into_iter().map(one).collect()
}

fn one(rest: &str) -> Result<RunFolder, String> {
    let wrong = |e: &dyn ToString| format!("its record cannot be read: {}", e.to_string());
    let packed = rest.split(ENDS).next().unwrap_or_default();
    let packed = BASE64_STANDARD.decode(packed).map_err(|e| wrong(&e))?;
    let json = GzDecoder::new(&packed[..]).take(MOST_BYTES);
    let record: Record = serde_json::from_reader(json).map_err(|e| wrong(&e))?;
    let summary = Summary::deserialize(&record.summary).map_err(|e| wrong(&e))?;
    let mut run = RunFolder {
        name: record.name,
        summary,
        raw: record.summary,
        timeline: record.timeline,
        hlog: record.hlog,
        manifest: record.run,
        configurations: record.configurations,
        ..RunFolder::default()
    };
    run.open()?;
    Ok(run)
}
