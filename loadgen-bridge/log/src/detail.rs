//! Reads LoadGen's detailed log: the settings of a run, its results, errors and phases.
//!
//! Before it issues a series of queries LoadGen writes a line (`generated_query_count`). An earlier
//! line names the purpose of the series. `Starting accuracy mode` has one series for each set of
//! samples that fits into memory, `Starting performance mode` one, and find-peak one for each tried
//! rate. The log has no verdict on a rate: the rate that LoadGen tries next shows the verdict.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Error, ErrorKind, Result};
use std::path::Path;

use serde::de::IgnoredAny;

use crate::scenario::{Scenario, TestMode};

/// Beginning of each line that LoadGen writes.
const MARKER: &str = ":::MLLOG";
/// Maximum length of a kept line in bytes; lists of loaded samples may be longer.
const KEPT_LINE: usize = 16 << 10;
/// Maximum number of kept error messages, and of kept warnings.
const MESSAGES_KEPT: usize = 20;

/// The purpose of a phase.
#[derive(Debug, Clone, PartialEq)]
pub enum PhaseKind {
    /// Every sample once, with one series of queries for each set of samples.
    Accuracy,
    /// The scenario's queries, measured.
    Performance,
    /// One rate of find-peak.
    Step {
        /// The tried rate, in queries per second.
        qps: f64,
        /// Whether the rate kept the latency limit; `None` if the log ends before the verdict.
        met: Option<bool>,
    },
}

/// A phase of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// The phase's purpose.
    pub kind: PhaseKind,
    /// Number of series of queries: in accuracy mode one for each set of samples, else 1.
    pub series: u64,
    /// Number of queries that LoadGen generated for the phase, an upper limit of what it issues.
    pub queries: u64,
    /// Number of samples in those queries.
    pub samples: u64,
}

/// The detailed log. The first value of a key counts, as in the official checker.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Detail {
    /// LoadGen's text of each value, without quotation marks.
    values: BTreeMap<String, String>,
    /// The phases, in the order of the run.
    pub phases: Vec<Phase>,
    /// The final rate of find-peak, in queries per second.
    pub peak_qps: Option<f64>,
    /// Number of errors that LoadGen logged.
    pub errors: usize,
    /// Texts of the first 20 errors.
    pub error_messages: Vec<String>,
    /// Texts of the first 20 warnings.
    pub warning_messages: Vec<String>,
    /// Line numbers, from 1, of LoadGen's lines that are not JSON, and of lines with a NUL. The
    /// official checker stops at the first such line.
    pub unreadable: Vec<usize>,
    /// Number of series of queries whose end is logged.
    ended: u64,
    /// Whether the last line has no end.
    torn: bool,
    /// The first setting or result that the log has twice: it is of several runs.
    pub repeated: Option<String>,
}

/// Values as a log has them, without its lines.
impl FromIterator<(String, String)> for Detail {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(values: T) -> Self {
        Detail {
            values: values.into_iter().collect(),
            ..Detail::default()
        }
    }
}

impl Detail {
    /// Reads the log at `path`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or does not begin with LoadGen's marker.
    pub fn open(path: &Path) -> Result<Self> {
        let mut log = BufReader::new(crate::open_file(path)?);
        if !log.fill_buf()?.starts_with(MARKER.as_bytes()) {
            let why = "it does not begin with :::MLLOG: it is no detailed log of LoadGen";
            return Err(Error::new(ErrorKind::InvalidData, why));
        }
        Self::read(log)
    }

    /// Reads a log to its end. Skips lines without LoadGen's marker.
    ///
    /// # Errors
    ///
    /// `log` fails to read.
    pub fn read(mut log: impl BufRead) -> Result<Self> {
        let mut detail = Detail::default();
        let mut series = Series::default();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            if log.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            detail.torn = line.last() != Some(&b'\n');
            match String::from_utf8_lossy(&line).strip_prefix(MARKER) {
                Some(json) => detail.line(number, json, &mut series),
                None if line.contains(&0) => detail.unreadable.push(number),
                None => {}
            }
        }
        Ok(detail)
    }

    /// Whether the log goes to the end of a test that was not aborted: the end of each series, and
    /// the result's last line.
    pub fn is_whole(&self) -> bool {
        let series: u64 = self.phases.iter().map(|phase| phase.series).sum();
        let judged = self
            .mode()
            .is_some_and(|mode| mode != TestMode::AccuracyOnly);
        let result = !judged || self.get("num_errors").is_some();
        !self.torn && self.mode().is_some() && self.ended == series && result
    }

    /// The scenario of the run.
    pub fn scenario(&self) -> Option<Scenario> {
        let name = self.get("effective_scenario")?;
        Scenario::ALL.into_iter().find(|s| s.name() == name)
    }

    /// The mode of the run.
    pub fn mode(&self) -> Option<TestMode> {
        let name = self.get("effective_test_mode")?;
        TestMode::ALL.into_iter().find(|m| m.name() == name)
    }

    /// LoadGen's text for `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// LoadGen's text for `key`; empty if the log does not have it.
    pub fn text(&self, key: &str) -> String {
        self.get(key).unwrap_or_default().to_owned()
    }

    /// The value of `key` as a count or a seed.
    pub fn whole(&self, key: &str) -> Option<u64> {
        self.get(key)?.parse().ok()
    }

    /// The value of `key` as a number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.get(key)?.parse().ok()
    }

    /// The value of `key` as a flag; LoadGen writes some flags as numbers.
    pub fn flag(&self, key: &str) -> Option<bool> {
        let text = self.get(key)?;
        text.parse()
            .ok()
            .or_else(|| Some(text.parse::<f64>().ok()? != 0.0))
    }

    /// The settings of the run, `audit.config` included, by name without `effective_`.
    pub fn effective(&self) -> BTreeMap<String, String> {
        let own = |(key, value): (&String, &String)| {
            Some((key.strip_prefix("effective_")?.to_owned(), value.clone()))
        };
        self.values.iter().filter_map(own).collect()
    }

    /// LoadGen's results: keys that begin with `result_`, and their texts.
    pub fn results(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = self
            .values
            .iter()
            .filter(|(key, _)| key.starts_with("result_"));
        own.map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The node names in "Network SUT: a (model on engine) + b", each without its text in
    /// parentheses, which may hold a ` + ` of its own.
    pub fn nodes(&self) -> Vec<String> {
        let name = self.get("sut_name").unwrap_or_default();
        let nodes = name.split_once(':').map_or("", |(_, nodes)| nodes);
        let mut names = Vec::new();
        let mut open = 0;
        for part in nodes.split(" + ") {
            if open <= 0 {
                let name = part.split(" (").next().unwrap_or(part).trim();
                names.extend((!name.is_empty()).then(|| name.to_owned()));
                open = 0;
            }
            open += part.matches('(').count() as i64 - part.matches(')').count() as i64;
        }
        names
    }

    fn line(&mut self, number: usize, json: &str, series: &mut Series) {
        if serde_json::from_str::<IgnoredAny>(json).is_err() {
            self.unreadable.push(number);
        }
        // LoadGen does not escape values, so a line may be invalid JSON. The text around key and
        // value is constant.
        let Some((key, rest)) = json
            .split_once("\"key\": \"")
            .and_then(|(_, rest)| rest.split_once("\", \"value\": "))
        else {
            return;
        };
        let Some((value, _)) = rest.rsplit_once(", \"time_ms\": ") else {
            return;
        };
        let value = value.trim_matches('"');
        if json.contains("\"is_error\": true") {
            self.errors += 1;
            if self.error_messages.len() < MESSAGES_KEPT {
                self.error_messages.push(value.to_owned());
            }
            if value.contains("Initial lower bound does not satisfy") {
                self.judge(false);
            }
        }
        if json.contains("\"is_warning\": true") && self.warning_messages.len() < MESSAGES_KEPT {
            self.warning_messages.push(value.to_owned());
        }
        match key {
            "generic_message" => self.message(value, series),
            "power_end" => self.ended += 1,
            "generated_query_count" => series.queries = value.parse().unwrap_or(0),
            "generated_samples_per_query" => self.series(series, value.parse().unwrap_or(0)),
            _ => {}
        }
        if json.len() <= KEPT_LINE {
            let once = ["loadgen_version", "test_datetime", "effective_", "result_"];
            if once.iter().any(|begin| key.starts_with(begin)) && self.values.contains_key(key) {
                self.repeated.get_or_insert_with(|| key.to_owned());
            }
            let first = self.values.entry(key.to_owned());
            first.or_insert_with(|| value.to_owned());
        }
    }

    /// Handles a message about the next series; find-peak's messages also judge the last rate.
    fn message(&mut self, text: &str, series: &mut Series) {
        let bounds = |text: &str| -> Option<(String, String)> {
            let (_, inside) = text.split_once('[')?;
            let (low, high) = inside.split_once(')')?.0.split_once(", ")?;
            Some((low.to_owned(), high.to_owned()))
        };
        let last = || text.rsplit(": ").next().unwrap_or("").to_owned();
        if text == "Starting accuracy mode" {
            *series = Series::default();
            series.kind = Some(SeriesKind::Accuracy);
        } else if text == "Starting performance mode" {
            *series = Series::default();
            series.kind = Some(SeriesKind::Performance);
        } else if text.starts_with("FindPeakPerformance: Check validity") {
            series.kind = Some(SeriesKind::Step(last()));
        } else if text.starts_with("FindBoundaries: Checking") {
            let Some((low, high)) = bounds(text) else {
                return;
            };
            self.judge_rate(&low, series);
            series.kind = Some(SeriesKind::Step(high));
        } else if text.starts_with("FindPeakPerformance: Found boundaries") {
            let Some((low, _)) = bounds(text) else { return };
            self.judge_rate(&low, series);
        } else if text.starts_with("FindPeakPerformanceBinarySearch: Testing") {
            let Some((low, _)) = bounds(text) else { return };
            self.judge_rate(&low, series);
            series.kind = Some(SeriesKind::Step(last()));
        } else if text.starts_with("FindPeakPerformance: Found peak performance field") {
            self.judge_rate(&last(), series);
            self.peak_qps = last().parse().ok();
        }
    }

    /// Judges the last rate: it passed if LoadGen made it the search's new lower bound, `low`.
    fn judge_rate(&mut self, low: &str, series: &Series) {
        self.judge(series.tried.as_deref() == Some(low));
    }

    /// Sets the verdict of the last step, unless the step has a verdict.
    fn judge(&mut self, good: bool) {
        if let Some(Phase {
            kind: PhaseKind::Step { met, .. },
            ..
        }) = self.phases.last_mut()
        {
            met.get_or_insert(good);
        }
    }

    /// Records a series of queries that LoadGen is about to issue.
    fn series(&mut self, series: &mut Series, samples_per_query: u64) {
        let kind = match &series.kind {
            Some(SeriesKind::Accuracy) => PhaseKind::Accuracy,
            Some(SeriesKind::Step(rate)) => {
                series.tried = Some(rate.clone());
                PhaseKind::Step {
                    qps: rate.parse().unwrap_or(0.0),
                    met: None,
                }
            }
            Some(SeriesKind::Performance) | None => PhaseKind::Performance,
        };
        let queries = series.queries;
        let samples = queries.saturating_mul(samples_per_query);
        if let Some(last) = self.phases.last_mut()
            && last.kind == PhaseKind::Accuracy
            && kind == PhaseKind::Accuracy
        {
            last.series += 1;
            last.queries += queries;
            last.samples += samples;
            return;
        }
        self.phases.push(Phase {
            kind,
            series: 1,
            queries,
            samples,
        });
    }
}

enum SeriesKind {
    Accuracy,
    Performance,
    /// A rate in LoadGen's own text, because rates are compared as text.
    Step(String),
}

/// The state of reading: the current series of queries.
#[derive(Default)]
struct Series {
    kind: Option<SeriesKind>,
    queries: u64,
    tried: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[(&str, &str)]) -> Detail {
        let line = |(key, value): &(&str, &str)| {
            format!(
                ":::MLLOG {{\"key\": \"{key}\", \"value\": {value}, \"time_ms\": 1.5, \
                 \"metadata\": {{\"is_error\": {}}}}}\n",
                key.starts_with("error_")
            )
        };
        let text: String = lines.iter().map(line).collect();
        Detail::read(text.as_bytes()).unwrap()
    }

    fn step<'a>(message: &'a str, queries: &'a str) -> [(&'a str, &'a str); 3] {
        [
            ("generic_message", message),
            ("generated_query_count", queries),
            ("generated_samples_per_query", "1"),
        ]
    }

    #[test]
    fn errors_and_warnings_are_kept_and_a_broken_line_is_named() {
        let log = b":::MLLOG {\"key\": \"get_sut_name_duration_ns\", \"value\": 4711, \
            \"time_ms\": 0.1, \"x\": 1}\n\
            :::MLLOG {\"key\": \"error_runtime\", \"value\": \"it \"broke\"\", \"time_ms\": 2.0, \
            \"metadata\": {\"is_error\": true}}\n\xff\xfe\n\
            :::MLLOG {\"key\": \"warning_generic_message\", \"value\": \"Logging allocation\", \
            \"time_ms\": 3.0, \"metadata\": {\"is_error\": false, \"is_warning\": true, \
            \"file\": \"logging.cc\"}}\n";
        let detail = Detail::read(&log[..]).unwrap();
        assert_eq!(detail.whole("get_sut_name_duration_ns"), Some(4711));
        assert_eq!(detail.error_messages, ["it \"broke"]);
        assert_eq!((detail.errors, &detail.unreadable[..]), (1, &[2][..]));
        assert_eq!(detail.warning_messages, ["Logging allocation"]);
    }

    #[test]
    fn what_loadgen_ran_with_and_what_came_of_it() {
        let detail = read(&[
            ("effective_scenario", "\"Server\""),
            ("effective_test_mode", "\"SubmissionRun\""),
            ("effective_target_qps", "300"),
            ("effective_qsl_rng_seed", "2085463073848966840"),
            ("effective_qsl_rng_seed", "7"),
            ("effective_use_token_latencies", "1"),
            ("result_perf_constraints_met", "false"),
            (
                "sut_name",
                "\"Network SUT: acc-a (llm on tokens) + acc-b (no answer)\"",
            ),
        ]);
        assert_eq!(detail.scenario(), Some(Scenario::Server));
        assert_eq!(detail.mode(), Some(TestMode::SubmissionRun));
        assert_eq!(detail.number("effective_target_qps"), Some(300.0));
        assert_eq!(detail.effective()["target_qps"], "300");
        assert_eq!(
            detail.whole("effective_qsl_rng_seed"),
            Some(2_085_463_073_848_966_840)
        );
        assert_eq!(detail.flag("result_perf_constraints_met"), Some(false));
        assert_eq!(detail.flag("effective_use_token_latencies"), Some(true));
        assert_eq!(detail.whole("not_there"), None);
        assert_eq!(detail.nodes(), ["acc-a", "acc-b"]);
        assert_eq!(read(&[]).mode(), None);
    }

    #[test]
    fn the_sets_of_an_accuracy_run_are_one_phase() {
        let mut lines = vec![("generic_message", "\"Starting accuracy mode\"")];
        for queries in ["200", "200", "100"] {
            lines.push(("generated_query_count", queries));
            lines.push(("generated_samples_per_query", "2"));
        }
        lines.extend(step("\"Starting performance mode\"", "178"));
        let phase = |kind, series, queries, samples| Phase {
            kind,
            series,
            queries,
            samples,
        };
        let expected = [
            phase(PhaseKind::Accuracy, 3, 500, 1000),
            phase(PhaseKind::Performance, 1, 178, 178),
        ];
        assert_eq!(read(&lines).phases, expected);
    }

    #[test]
    fn a_log_that_is_cut_anywhere_is_not_whole() {
        let mut lines = vec![("effective_test_mode", "\"SubmissionRun\"")];
        lines.extend(step("\"Starting accuracy mode\"", "200"));
        lines.push(("power_end", "\"\""));
        lines.extend(step("\"Starting performance mode\"", "178"));
        lines.extend([("power_end", "\"\""), ("num_errors", "0")]);
        for end in 0..=lines.len() {
            assert_eq!(read(&lines[..end]).is_whole(), end == lines.len(), "{end}");
        }
        lines.truncate(5);
        lines[0].1 = "\"AccuracyOnly\"";
        assert!(read(&lines).is_whole());
    }

    #[test]
    fn a_file_that_is_no_log_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(crate::DETAIL);
        for text in ["", "hello\n"] {
            std::fs::write(&path, text).unwrap();
            let error = Detail::open(&path).unwrap_err().to_string();
            assert!(error.contains("no detailed log of LoadGen"), "{error}");
        }
    }

    fn steps(detail: &Detail) -> Vec<(f64, Option<bool>)> {
        let step = |p: &Phase| match p.kind {
            PhaseKind::Step { qps, met } => (qps, met),
            _ => panic!("{p:?}"),
        };
        detail.phases.iter().map(step).collect()
    }

    #[test]
    fn what_find_peak_tries_next_is_the_verdict_on_a_step() {
        let bounds = "\"FindBoundaries: Checking fields ";
        let mid = "\"FindPeakPerformanceBinarySearch: Testing the mid value of bounds ";
        let base = "\"FindPeakPerformance: Check validity of the base settings field: 100.000000\"";
        let first = format!("{bounds}[100.000000, 200.000000)\"");
        let second = format!("{bounds}[200.000000, 400.000000)\"");
        let third = format!("{mid}[200.000000, 400.000000): 300.000000\"");
        let fourth = format!("{mid}[200.000000, 300.000000): 250.000000\"");
        let lines = [
            &[("generic_message", "\"Starting FindPeakPerformance mode\"")][..],
            &step(base, "20"),
            &step(&first, "40"),
            &step(&second, "80"),
            &[(
                "generic_message",
                "\"FindPeakPerformance: Found boundaries: [200.000000, 400.000000)\"",
            )],
            &step(&third, "60"),
            &step(&fourth, "50"),
        ]
        .concat();
        let cut = read(&lines);
        let known = [
            (100.0, Some(true)),
            (200.0, Some(true)),
            (400.0, Some(false)),
            (300.0, Some(false)),
        ];
        assert_eq!(steps(&cut)[..4], known);
        assert_eq!((steps(&cut)[4], cut.peak_qps), ((250.0, None), None));
        for (peak, met) in [("250.000000", true), ("200.000000", false)] {
            let found = format!("\"FindPeakPerformance: Found peak performance field: {peak}\"");
            let whole = read(&[&lines[..], &[("generic_message", &found)]].concat());
            assert_eq!(steps(&whole)[4], (250.0, Some(met)));
            assert_eq!(whole.peak_qps, peak.parse().ok());
        }
    }

    #[test]
    fn a_first_step_that_is_too_much_is_an_error() {
        let base = "\"FindPeakPerformance: Check validity of the base settings field: 9.500000\"";
        let error = "\"FindPeakPerformance: Initial lower bound does not satisfy performance\"";
        let lines = [&step(base, "20")[..], &[("error_runtime", error)]].concat();
        let detail = read(&lines);
        assert_eq!(steps(&detail), [(9.5, Some(false))]);
        assert_eq!((detail.peak_qps, detail.error_messages.len()), (None, 1));
    }
}
