//! Reads LoadGen's result of a run from its summary and its detailed log.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::Path;

use loadgen_log::{AccuracyLog, Detail, PhaseKind, TestMode};

use crate::error::LoadgenError;
use crate::log_settings::LogFiles;

/// Maximum number of bytes read from a summary, which usually has a few KB.
const SUMMARY_AT_MOST: u64 = 16 << 20;

/// LoadGen's verdict on a performance run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verdict {
    /// All constraints were met.
    Valid,
    /// Some constraints were not met; [`TestOutcome::reasons`] names them.
    Invalid,
    /// An accuracy run is not judged.
    #[default]
    NotJudged,
}

/// The result of a scenario.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Figure {
    /// Server: samples per second until the last completion.
    CompletedSamplesPerSecond(f64),
    /// Offline: samples per second.
    SamplesPerSecond(f64),
    /// SingleStream and MultiStream: a percentile of the latency of samples or of queries.
    Latency {
        /// The percentile, in percent (90.0).
        percentile: f64,
        /// The latency, in ns.
        ns: u64,
    },
}

/// The outcome of a run that LoadGen completed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TestOutcome {
    /// LoadGen's verdict.
    pub verdict: Verdict,
    /// Why the run is not valid: the constraints that were not met, and LoadGen's recommendations.
    pub reasons: Vec<String>,
    /// The scenario's result; `None` after an accuracy run.
    pub figure: Option<Figure>,
    /// The SUT's name in the summary; empty after an accuracy run.
    pub sut_name: String,
    /// Number of errors that LoadGen logged. A submission must have none, whatever the verdict.
    pub errors: u64,
    /// Number of warnings that LoadGen logged.
    pub warnings: u64,
    /// Every `name : number` of the summary's results and additional statistics, by LoadGen's name.
    pub statistics: BTreeMap<String, f64>,
    /// The detailed log.
    pub detail: Detail,
    /// Paths of the logs.
    pub files: LogFiles,
}

impl TestOutcome {
    /// Reads the logs of a run that has ended, and waits until they are on the disk.
    ///
    /// LoadGen's streams ignore errors, and write nothing more after the first, although there may
    /// be room again: only a log that is whole proves that all was written.
    ///
    /// # Errors
    ///
    /// A log cannot be read, or is incomplete.
    pub fn read(files: LogFiles) -> Result<Self, LoadgenError> {
        let failed = |path: &Path, why: String| LoadgenError::Result {
            path: path.to_owned(),
            why,
        };
        let mut summary = String::new();
        let unread = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| failed(&path, disk::words(&error))
        };
        let is_cut = |path: &Path| failed(path, cut(path));
        let open = |path: &Path| {
            let synced = File::open(path).and_then(|file| file.sync_all().map(|()| file));
            synced.map_err(unread(path))
        };
        open(&files.summary)?
            .take(SUMMARY_AT_MOST)
            .read_to_string(&mut summary)
            .map_err(unread(&files.summary))?;
        let outcome = parse_summary(&summary);
        let mut outcome = outcome.ok_or_else(|| is_cut(&files.summary))?;
        let detail = Detail::read(BufReader::new(open(&files.detail)?));
        outcome.detail = detail.map_err(unread(&files.detail))?;
        let detail = &outcome.detail;
        if !detail.is_whole() {
            return Err(is_cut(&files.detail));
        }
        let accuracy = detail
            .phases
            .iter()
            .filter(|p| p.kind == PhaseKind::Accuracy);
        let samples: u64 = accuracy.map(|phase| phase.samples).sum();
        open(&files.accuracy)?;
        let log = AccuracyLog::open(&files.accuracy).and_then(|log| {
            let mut records = log.into_iter();
            records.try_fold(0, |n, record| record.map(|_| n + 1))
        });
        let answers: u64 = log.map_err(|_| is_cut(&files.accuracy))?;
        // A performance phase may log answers too.
        let more = detail.mode() != Some(TestMode::AccuracyOnly);
        if answers < samples || answers > samples && !more {
            let why = format!("it has {answers} answers to {samples} samples");
            return Err(failed(&files.accuracy, why));
        }
        outcome.files = files;
        Ok(outcome)
    }

    /// Latency in ns at a percentile, given as a fraction: of samples, in MultiStream of queries. 0
    /// if the summary lacks it.
    pub fn latency_ns(&self, percentile: f64) -> f64 {
        let name = format!("{:.2} percentile latency (ns)", percentile * 100.0);
        self.statistics.get(&name).copied().unwrap_or(0.0)
    }

    /// Whether LoadGen's verdict is VALID.
    pub fn is_valid(&self) -> bool {
        self.verdict == Verdict::Valid
    }
}

/// Why a log is cut: what the system says to a further write, or that it says nothing any more.
fn cut(path: &Path) -> String {
    let append = || {
        let mut file = OpenOptions::new().append(true).open(path)?;
        let end = file.metadata()?.len();
        let written = file
            .write_all(&[b'\n'; 1 << 16])
            .and_then(|()| file.sync_all());
        file.set_len(end)?;
        written.map(|()| end)
    };
    match append() {
        Err(e) if e.kind() == ErrorKind::NotFound => disk::words(&e),
        Err(e) => format!(
            "it is cut: {}; make room there, and run again",
            disk::words(&e)
        ),
        Ok(end) => format!(
            "it is cut after {end} bytes: LoadGen could not write, perhaps with no space left on \
             device or a quota for a while; make room there, and run again"
        ),
    }
}

/// Parses a summary; `None` if its last lines are missing.
fn parse_summary(text: &str) -> Option<TestOutcome> {
    let mut outcome = TestOutcome::default();
    let mut errors = None;
    let mut recommending = false;
    // The lines of "Early Stopping Result:", a reason for INVALID if early stopping was not met.
    let mut early = Vec::new();
    let mut in_early = false;
    // Skip the parameters: the detailed log has them.
    let parameters = |line: &&str| line.starts_with("Test Parameters Used");
    let results = text.lines().take_while(|line| !parameters(line));
    // The last two lines always: "No errors encountered during test.", "1 ERROR encountered. …".
    let last = text.lines().filter(|line| line.contains("encountered"));
    for line in last {
        let Some((count, what)) = line.split_once(' ') else {
            continue;
        };
        let count = match count {
            "No" => Some(0),
            count => count.parse().ok(),
        };
        match (count, what.to_ascii_lowercase()) {
            (Some(count), what) if what.starts_with("warning") => outcome.warnings = count,
            (Some(_), what) if what.starts_with("error") => errors = count,
            _ => {}
        }
    }
    for line in results.filter(|line| !line.contains("encountered")) {
        if line.starts_with("Recommendations:") {
            recommending = true;
        } else if line.ends_with("Early Stopping Result:") {
            in_early = true;
        } else if in_early && !line.is_empty() {
            early.push(line.trim_start_matches([' ', '*']));
        } else if line.is_empty() {
            in_early = false;
        } else if let Some(advice) = line.strip_prefix(" * ").filter(|_| recommending) {
            outcome.reasons.push(advice.trim().to_owned());
        } else if let Some((key, value)) = line.split_once(':') {
            recommending = false;
            let constraint = key.starts_with("  ");
            let (key, value) = (key.trim(), value.trim());
            match (key, value) {
                (key, "NO") if constraint => outcome.reasons.push(format!("{key}: no")),
                _ if constraint => {}
                ("SUT name", name) => outcome.sut_name = name.to_owned(),
                ("Result is", "VALID") => outcome.verdict = Verdict::Valid,
                ("Result is", _) => outcome.verdict = Verdict::Invalid,
                (key, value) => {
                    if let Ok(number) = value.parse() {
                        outcome.figure = figure(key, number).or(outcome.figure);
                        outcome.statistics.insert(key.to_owned(), number);
                    }
                }
            }
        }
    }
    let mut reasons = outcome.reasons.iter();
    if reasons.any(|reason| reason.starts_with("Early stopping")) && !early.is_empty() {
        outcome.reasons.push(early.join(" "));
    }
    outcome.errors = errors?;
    Some(outcome)
}

/// The scenario's result, if `key` is the name of a result in the summary.
fn figure(key: &str, number: f64) -> Option<Figure> {
    match key {
        "Completed samples per second" => Some(Figure::CompletedSamplesPerSecond(number)),
        "Samples per second" => Some(Figure::SamplesPerSecond(number)),
        _ => Some(Figure::Latency {
            percentile: key
                .strip_suffix("th percentile latency (ns)")?
                .parse()
                .ok()?,
            ns: number as u64,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = include_str!("../tests/data/server_summary.txt");

    #[test]
    fn a_server_run_is_read() {
        let outcome = parse_summary(SERVER).expect("complete");
        assert_eq!(outcome.verdict, Verdict::Invalid);
        assert_eq!(
            outcome.reasons,
            [
                "Performance constraints satisfied: no",
                "Early stopping satisfied: no",
                "Reduce target QPS to improve latency.",
                "Run unsuccessful. Processed 100 queries. Would need to run at least 5 more queries, with the run \
                 being successful if every additional query were under latency."
            ]
        );
        assert_eq!(
            outcome.figure,
            Some(Figure::CompletedSamplesPerSecond(98.75))
        );
        assert_eq!(outcome.sut_name, "Network SUT: a");
        assert_eq!(outcome.latency_ns(0.5), 600.0);
        assert_eq!(outcome.latency_ns(0.999), 8999.0);
        assert_eq!((outcome.errors, outcome.warnings), (2, 1));
        assert_eq!(outcome.statistics["Scheduled samples per second"], 99.1);
    }

    #[test]
    fn a_stream_run_and_an_offline_run_have_their_figures() {
        let text = "90.0th percentile latency (ns) : 1234\nNo errors encountered during test.\n";
        let outcome = parse_summary(text).expect("complete");
        assert_eq!(
            outcome.figure,
            Some(Figure::Latency {
                percentile: 90.0,
                ns: 1234
            })
        );
        let cut = "Samples per second: 6.71e+07\n";
        assert_eq!(parse_summary(cut), None, "no last lines");
        // Other lines may contain the word.
        let last = "No errors encountered during test.\nencountered\nan error encountered\n";
        let outcome = parse_summary(&format!("{cut}{last}"));
        let figure = outcome.and_then(|outcome| outcome.figure);
        assert_eq!(figure, Some(Figure::SamplesPerSecond(6.71e7)));
    }
}
