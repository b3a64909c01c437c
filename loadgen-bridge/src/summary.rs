//! What LoadGen said about a run, read back from its summary and its detailed log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::detail::Detail;
use crate::error::LoadgenError;
use crate::log_settings::LogFiles;

/// A summary is a few kilobytes; one of this many bytes is none.
const SUMMARY_AT_MOST: u64 = 16 << 20;

/// LoadGen's word on a performance run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All constraints were met.
    Valid,
    /// Some were not; [`TestOutcome::reasons`] says which.
    Invalid,
    /// An accuracy run is not judged.
    NotJudged,
}

/// The figure that a scenario is about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Figure {
    /// Server: samples per second, by the time of the last completion.
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

/// Latencies as LoadGen computed them, in ns: of samples, in
/// MultiStream of queries. All 0 where the summary has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latencies {
    /// The shortest.
    pub min: u64,
    /// The mean.
    pub mean: u64,
    /// The longest.
    pub max: u64,
    /// The 50th percentile.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 95th percentile.
    pub p95: u64,
    /// The 97th percentile.
    pub p97: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p999: u64,
}

/// A run that LoadGen brought to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct TestOutcome {
    /// LoadGen's word.
    pub verdict: Verdict,
    /// Why it is not valid: the constraints that were not met, and LoadGen's recommendations.
    pub reasons: Vec<String>,
    /// The scenario's figure; none after an accuracy run.
    pub figure: Option<Figure>,
    /// Latencies.
    pub latencies: Latencies,
    /// The SUT's name in the summary; empty after an accuracy run.
    pub sut_name: String,
    /// Errors that LoadGen logged. A submission must have none, whatever the verdict.
    pub errors: u64,
    /// Warnings that LoadGen logged.
    pub warnings: u64,
    /// Every `name : number` of the summary's results
    /// and additional statistics, under LoadGen's names.
    pub statistics: BTreeMap<String, f64>,
    /// The settings that LoadGen ran with, as the summary lists them.
    pub parameters: BTreeMap<String, String>,
    /// What the detailed log says beyond that.
    pub detail: Detail,
    /// Where the logs are.
    pub files: LogFiles,
}

impl TestOutcome {
    /// Reads the logs of a run that has ended.
    ///
    /// # Errors
    ///
    /// A log cannot be read, or is not one that LoadGen has brought to its end.
    pub fn read(files: LogFiles) -> Result<Self, LoadgenError> {
        let failed = |path: &Path, why: String| LoadgenError::Result {
            path: path.to_owned(),
            why,
        };
        let open = |path: &Path| File::open(path).map_err(|error| failed(path, error.to_string()));
        let mut summary = String::new();
        let file = open(&files.summary)?;
        let read = file.take(SUMMARY_AT_MOST).read_to_string(&mut summary);
        read.map_err(|error| failed(&files.summary, error.to_string()))?;
        let detail = BufReader::new(open(&files.detail)?);
        let mut outcome = parse_summary(&summary, files);
        if !outcome.1 {
            let why = "LoadGen has not written its last lines; was the run cut short?".to_owned();
            return Err(failed(&outcome.0.files.summary, why));
        }
        outcome.0.detail = Detail::read(detail)
            .map_err(|error| failed(&outcome.0.files.detail, error.to_string()))?;
        Ok(outcome.0)
    }

    /// Whether LoadGen calls it valid.
    pub fn is_valid(&self) -> bool {
        self.verdict == Verdict::Valid
    }
}

/// The outcome, and whether the summary is whole.
fn parse_summary(text: &str, files: LogFiles) -> (TestOutcome, bool) {
    let mut outcome = TestOutcome {
        verdict: Verdict::NotJudged,
        reasons: Vec::new(),
        figure: None,
        latencies: Latencies::default(),
        sut_name: String::new(),
        errors: 0,
        warnings: 0,
        statistics: BTreeMap::new(),
        parameters: BTreeMap::new(),
        detail: Detail::default(),
        files,
    };
    let mut whole = false;
    let mut in_parameters = false;
    let mut recommending = false;
    // The lines of "Early Stopping Result:", which are a reason when early stopping was not met.
    let mut early = Vec::new();
    let mut in_early = false;
    for line in text.lines() {
        // The last two lines, in every mode: "No errors
        // encountered during test.", "1 ERROR encountered. …".
        if let Some((count, what)) = line.split_once(' ')
            && line.contains("encountered")
        {
            let count = if count == "No" {
                Some(0)
            } else {
                count.parse().ok()
            };
            match count {
                Some(count) if what.to_ascii_lowercase().starts_with("warning") => {
                    outcome.warnings = count
                }
                Some(count) if what.to_ascii_lowercase().starts_with("error") => {
                    outcome.errors = count;
                    whole = true;
                }
                _ => {}
            }
            continue;
        }
        if line.starts_with("Test Parameters Used") {
            in_parameters = true;
        } else if line.starts_with("Recommendations:") {
            recommending = true;
        } else if line.ends_with("Early Stopping Result:") {
            in_early = true;
        } else if in_early && !line.is_empty() {
            early.push(line.trim_start_matches([' ', '*']));
        } else if line.is_empty() {
            in_early = false;
        } else if let Some(advice) = line.strip_prefix(" * ")
            && recommending
        {
            outcome.reasons.push(advice.trim().to_owned());
        } else if let Some((key, value)) = line.split_once(':') {
            recommending = false;
            let constraint = key.starts_with("  ");
            let (key, value) = (key.trim(), value.trim());
            if in_parameters {
                outcome.parameters.insert(key.to_owned(), value.to_owned());
            } else if constraint {
                if value == "NO" {
                    outcome.reasons.push(format!("{key}: no"));
                }
            } else if key == "SUT name" {
                outcome.sut_name = value.to_owned();
            } else if key == "Result is" {
                outcome.verdict = if value == "VALID" {
                    Verdict::Valid
                } else {
                    Verdict::Invalid
                };
            } else if let Ok(number) = value.parse::<f64>() {
                outcome.take_number(key, number);
            }
        }
    }
    if outcome
        .reasons
        .iter()
        .any(|reason| reason.starts_with("Early stopping"))
        && !early.is_empty()
    {
        outcome.reasons.push(early.join(" "));
    }
    (outcome, whole)
}

impl TestOutcome {
    fn take_number(&mut self, key: &str, number: f64) {
        let latencies = &mut self.latencies;
        let known = match key {
            "Min latency (ns)" => Some(&mut latencies.min),
            "Mean latency (ns)" => Some(&mut latencies.mean),
            "Max latency (ns)" => Some(&mut latencies.max),
            "50.00 percentile latency (ns)" => Some(&mut latencies.p50),
            "90.00 percentile latency (ns)" => Some(&mut latencies.p90),
            "95.00 percentile latency (ns)" => Some(&mut latencies.p95),
            "97.00 percentile latency (ns)" => Some(&mut latencies.p97),
            "99.00 percentile latency (ns)" => Some(&mut latencies.p99),
            "99.90 percentile latency (ns)" => Some(&mut latencies.p999),
            _ => None,
        };
        if let Some(latency) = known {
            *latency = number as u64;
        }
        match key {
            "Completed samples per second" => {
                self.figure = Some(Figure::CompletedSamplesPerSecond(number))
            }
            "Samples per second" => self.figure = Some(Figure::SamplesPerSecond(number)),
            key => {
                if let Some(percentile) = key.strip_suffix("th percentile latency (ns)")
                    && let Ok(percentile) = percentile.parse()
                {
                    self.figure = Some(Figure::Latency {
                        percentile,
                        ns: number as u64,
                    });
                }
            }
        }
        self.statistics.insert(key.to_owned(), number);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn files() -> LogFiles {
        let path = PathBuf::new;
        LogFiles {
            summary: path(),
            detail: path(),
            accuracy: path(),
            trace: path(),
        }
    }

    const SERVER: &str = "\
================================================
MLPerf Results Summary
================================================
SUT name : Network SUT: a
Scenario : Server
Mode     : PerformanceOnly
Completed samples per second    : 98.75
Result is : INVALID
  Performance constraints satisfied : NO
  Min duration satisfied : Yes
  Min queries satisfied : Yes
  Early stopping satisfied: NO
Recommendations:
 * Reduce target QPS to improve latency.
Early Stopping Result:
 * Run unsuccessful.
 * Processed 100 queries.
 * Would need to run at least 5 more queries,
 with the run being successful if every additional
 query were under latency.

================================================
Additional Stats
================================================
Scheduled samples per second : 99.10
Min latency (ns)                : 12
Max latency (ns)                : 9000
Mean latency (ns)               : 700
50.00 percentile latency (ns)   : 600
99.90 percentile latency (ns)   : 8999

================================================
Test Parameters Used
================================================
samples_per_query : 1
target_qps : 100

1 warning encountered. See detailed log.

2 ERRORS encountered. See detailed log.
";

    #[test]
    fn a_server_run_is_read() {
        let (outcome, whole) = parse_summary(SERVER, files());
        assert!(whole);
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
        assert_eq!(
            (
                outcome.latencies.min,
                outcome.latencies.p50,
                outcome.latencies.p999
            ),
            (12, 600, 8999)
        );
        assert_eq!((outcome.errors, outcome.warnings), (2, 1));
        assert_eq!(outcome.statistics["Scheduled samples per second"], 99.1);
        assert_eq!(outcome.parameters["target_qps"], "100");
    }

    #[test]
    fn a_stream_run_and_an_offline_run_have_their_figures() {
        let text = "90.0th percentile latency (ns) : 1234\nNo errors encountered during test.\n";
        let (outcome, whole) = parse_summary(text, files());
        assert!(whole);
        assert_eq!(
            outcome.figure,
            Some(Figure::Latency {
                percentile: 90.0,
                ns: 1234
            })
        );
        let (outcome, whole) = parse_summary("Samples per second: 6.71e+07\n", files());
        assert!(!whole, "no last lines");
        assert_eq!(outcome.figure, Some(Figure::SamplesPerSecond(6.71e7)));
    }
}
