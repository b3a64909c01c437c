//! A run in its page: the files of its folder in one element, and back out of it.

use std::{collections::BTreeMap, fs, path::Path};

use record::{ReadError, Run, Summary, timeline::Timeline};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::columns::{into_columns, out_of_columns};

/// The element begins so.
const BEGINS: &str = "<script type=\"application/json\" class=\"record\">";
/// And ends so.
const ENDS: &str = "</script>";

/// What the element holds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    /// What the run is called.
    name: String,
    /// `summary.json`.
    summary: Value,
    /// `timeline.json`, its arrays of objects as columns.
    timeline: Value,
    /// `latency.hlog`, as it is.
    hlog: Option<String>,
    /// `run.json`.
    run: Option<Value>,
    /// The nodes' configurations.
    configurations: BTreeMap<String, Value>,
}

/// The element.
pub fn record(run: &Run) -> String {
    let timeline = run.timeline.as_ref().map(serde_json::to_value);
    let record = Record {
        name: run.name.clone(),
        summary: run.raw.clone(),
        timeline: into_columns(timeline.and_then(Result::ok).unwrap_or_default()),
        hlog: run.hlog.clone(),
        run: run.left.clone(),
        configurations: run.configurations.clone(),
    };
    // Plain data under text keys: it always has a JSON. `<` might end the element.
    let json = serde_json::to_string(&record).unwrap_or_default();
    format!("{BEGINS}{}{ENDS}", json.replace('<', "\\u003c"))
}

/// Reads a run's folder, or the runs that a page was made of.
///
/// # Errors
/// [`ReadError`] names the file.
pub fn read_all(path: &Path) -> Result<Vec<Run>, ReadError> {
    if !path.is_file() {
        return Ok(vec![Run::read(path)?]);
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

/// The runs of a page: one, or those that it compares.
pub fn read(page: &str) -> Result<Vec<Run>, String> {
    let records: Vec<&str> = page.split(BEGINS).skip(1).collect();
    if records.is_empty() {
        return Err("this is no page of a run: it holds no record".to_owned());
    }
    records.into_iter().map(one).collect()
}

fn one(rest: &str) -> Result<Run, String> {
    let json = rest.split(ENDS).next().unwrap_or_default();
    let wrong = |e: serde_json::Error| format!("its record cannot be read: {e}");
    let record: Record = serde_json::from_str(json).map_err(wrong)?;
    let timeline = out_of_columns(record.timeline)?;
    let timeline: Option<Timeline> = serde_json::from_value(timeline).map_err(wrong)?;
    let summary = Summary::deserialize(&record.summary).map_err(wrong)?;
    let mut run = Run {
        name: record.name,
        summary,
        raw: record.summary,
        timeline,
        hlog: record.hlog,
        left: record.run,
        configurations: record.configurations,
        ..Run::default()
    };
    run.open()?;
    Ok(run)
}
