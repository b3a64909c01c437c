//! Reads and writes a run's folder: `summary.json` and the files beside it.

use std::{collections::BTreeMap, fs, io, path::Path};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    COPIES, FileError, MANIFEST, Manifest, NodeFacts, Stage, Summary, configurations,
    histograms::{self, HISTOGRAMS},
    latency_bound_us,
    timeline::Timeline,
};

/// Name of the summary's file, which every run's folder has.
pub const SUMMARY: &str = "summary.json";
/// Name of the timeline's file.
pub const TIMELINE: &str = "timeline.json";

/// Writes `summary.json`.
///
/// # Errors
/// The system cannot write the file.
pub fn write_summary(folder: &Path, summary: &Summary) -> io::Result<()> {
    write(&folder.join(SUMMARY), serde_json::to_vec_pretty(summary)?)
}

/// Writes `timeline.json`.
///
/// # Errors
/// The system cannot write the file.
pub fn write_timeline(folder: &Path, timeline: &Timeline) -> io::Result<()> {
    write(&folder.join(TIMELINE), serde_json::to_vec(timeline)?)
}

fn write(path: &Path, mut json: Vec<u8>) -> io::Result<()> {
    json.push(b'\n');
    disk::write(path, json)
}

/// All data of one run. Its JSON has the files' contents; [`RunFolder::open`] derives the rest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFolder {
    /// The run's name: its folder's name.
    pub name: String,
    /// The content of `summary.json`, including keys of later versions.
    #[serde(rename = "summary")]
    pub raw: Value,
    /// The run's timeline, if it has one.
    pub timeline: Option<Timeline>,
    /// The text of the log of histograms, `latency.hlog`.
    pub hlog: Option<String>,
    /// The content of `run.json`.
    #[serde(rename = "run")]
    pub manifest: Option<Manifest>,
    /// The nodes' configurations, by the names of their copies.
    pub configurations: BTreeMap<String, Value>,
    /// The content of `summary.json`.
    #[serde(skip)]
    pub summary: Summary,
    /// Histograms in nanoseconds, by the keys of stages and token times.
    #[serde(skip)]
    pub histograms: BTreeMap<String, Histogram<u64>>,
    /// The run's start, in seconds since 1970.
    #[serde(skip)]
    pub began: Option<f64>,
    /// Missing files, and what the page lacks without each.
    #[serde(skip)]
    pub missing: Vec<String>,
}

/// Reads a plain file. A pipe or a device is an error, since reading it may wait for ever.
fn read(path: &Path) -> io::Result<String> {
    match path.metadata()?.is_file() {
        true => fs::read_to_string(path),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no plain file",
        )),
    }
}

/// Returns a file's text; `None` if the file does not exist.
fn text_of(path: &Path) -> Result<Option<String>, FileError> {
    match read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        text => text.map(Some).map_err(FileError::read(path)),
    }
}

/// Returns a file's JSON; `None` if the file does not exist.
fn json_of<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    let text = text_of(path)?;
    let value = text.map(|text| serde_json::from_str(&text));
    value.transpose().map_err(FileError::content(path))
}

impl RunFolder {
    /// Reads a run's folder.
    ///
    /// # Errors
    /// [`FileError`] names the file. Missing optional files are no error: [`RunFolder::missing`]
    /// names them.
    pub fn read(path: &Path) -> Result<RunFolder, FileError> {
        let file = path.join(SUMMARY);
        let text = read(&file).map_err(FileError::read(&file))?;
        let mut run = RunFolder {
            name: name_of(path),
            raw: serde_json::from_str(&text).map_err(FileError::content(&file))?,
            timeline: json_of(&path.join(TIMELINE))?,
            manifest: json_of(&path.join(MANIFEST))?,
            configurations: configurations::read(&path.join(COPIES)),
            hlog: text_of(&path.join(HISTOGRAMS))?,
            ..RunFolder::default()
        };
        let opened = run.open();
        opened.map_err(|(file, why)| FileError::content(&path.join(file))(why))?;
        Ok(run)
    }

    /// Parses the files' contents and fills in the fields that follow from them.
    ///
    /// # Errors
    /// The name of a malformed file, and why it is malformed.
    pub fn open(&mut self) -> Result<(), (&'static str, String)> {
        let summary = Summary::deserialize(&self.raw);
        self.summary = summary.map_err(|e| (SUMMARY, e.to_string()))?;
        if let Some(log) = &self.hlog {
            self.histograms = histograms::read_log(log).map_err(|why| (HISTOGRAMS, why))?;
            self.began = histograms::began(log);
        } else {
            self.missing.push(format!(
                "`{HISTOGRAMS}` is not there: no percentile curves are drawn"
            ));
        }
        if self.timeline.is_none() {
            self.missing.push(format!(
                "`{TIMELINE}` is not there (an older version made this run): nothing is drawn over \
                 time, and the slowest samples are not known"
            ));
        }
        Ok(())
    }

    /// Returns the histogram of a stage, if it has samples.
    pub fn histogram(&self, stage: Stage) -> Option<&Histogram<u64>> {
        let found = self.histograms.get(stage.key());
        found.filter(|h| !h.is_empty())
    }

    /// LoadGen's latency bound in microseconds, if it has one.
    pub fn bound_us(&self) -> Option<f64> {
        latency_bound_us(&self.summary.run.loadgen.as_ref()?.limits)
    }

    /// Returns keys and values of the configuration whose copy has the file name `copy`. Without a
    /// readable copy, returns the first 12 digits of the configuration's hash.
    pub fn configuration(&self, copy: &str) -> Vec<(String, String)> {
        if let Some(document) = self.configurations.get(copy) {
            return configurations::compared(document);
        }
        let files = self.manifest.as_ref().map(|m| &m.files);
        let hash = files.and_then(|files| files.get(copy)).map(|f| &f.sha256);
        let hash = hash.map(|h| ("configuration".to_owned(), h.chars().take(12).collect()));
        hash.into_iter().collect()
    }

    /// Creates a run from a summary and a timeline alone: a run in progress, or one in a test.
    pub fn of(name: &str, summary: &Summary, timeline: Option<Timeline>) -> RunFolder {
        RunFolder {
            name: name.to_owned(),
            summary: summary.clone(),
            raw: serde_json::to_value(summary).unwrap_or_default(),
            timeline,
            ..RunFolder::default()
        }
    }

    /// Returns the facts that the frontend's node and each accelerator report.
    pub fn nodes(&self) -> Vec<(String, &NodeFacts)> {
        let system = &self.summary.run.system;
        let own = system.facts.as_ref();
        let own = own.map(|f| (self.summary.node.clone(), f));
        let others = system.accelerators.iter();
        let others = others.filter_map(|a| Some((a.node.clone(), a.facts.as_ref()?)));
        own.into_iter().chain(others).collect()
    }
}

/// Returns the last component of a folder's path: `server` for `results/server`.
fn name_of(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let last = whole.file_name().unwrap_or(whole.as_os_str());
    last.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_summary_is_named_and_what_to_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = RunFolder::read(folder.path())
            .expect_err("empty")
            .to_string();
        assert!(error.contains("summary.json") && error.contains("name the folder"));
        fs::write(folder.path().join(SUMMARY), "{\"samples\": \"many\"}").expect("written");
        let error = RunFolder::read(folder.path())
            .expect_err("no number")
            .to_string();
        assert!(error.contains("summary.json: invalid type"), "{error}");
    }

    #[test]
    fn what_is_not_there_is_said_and_no_error() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(SUMMARY), "{\"node\": \"f\"}").expect("written");
        let run = RunFolder::read(folder.path()).expect("a run");
        assert_eq!(run.missing.len(), 2);
        assert!(
            run.missing[1].contains("timeline.json"),
            "{:?}",
            run.missing
        );
    }
}
