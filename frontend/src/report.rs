//! What a run leaves behind: `summary.json`, histograms, a page on the screen, and the exit code.

use std::{
    fs, io,
    io::{IsTerminal, Write},
    path::PathBuf,
    time::{Duration, SystemTime},
};

use loadgen_bridge::{Figure, Scenario, TestMode, TestOutcome, Verdict as Word};
use qdl::stats::{
    Carried, Exit, Histograms, LOOPBACK_NOTE, Mode, RunRecord, SaveError, Summary, SystemRecord,
    Throughput, TokenRecord,
};
use qdl::wire::Stream;

use crate::{
    exit::{ExitCode, Failure},
    settings::Settings,
    sut::NameAnswer,
    tokens::TokenFindings,
    verify::Findings,
};

/// Stands in a result folder whose run must not be counted, whatever LoadGen wrote there.
pub const INVALID_FILE: &str = "INVALID";
/// The summary.
pub const SUMMARY_FILE: &str = "summary.json";
/// What the histograms' file names begin with.
const HISTOGRAMS: &str = "latency";

/// A report that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A histogram.
    #[error(transparent)]
    Histograms(#[from] SaveError),
}

/// All that is known of a run that has ended, however it did.
pub struct Ended<'a> {
    /// This node's name.
    pub node: &'a str,
    /// What LoadGen was told.
    pub settings: &'a Settings,
    /// What LoadGen said, if it came to its end.
    pub outcome: Option<TestOutcome>,
    /// Why the run was given up, if it was.
    pub failure: Option<Failure>,
    /// The fabric, and whether nothing left this machine though one was used.
    pub fabric: (&'static str, bool),
    /// What the backend counted.
    pub system: SystemRecord,
    /// All rails' histograms.
    pub histograms: Histograms,
    /// Bytes of requests and responses of recorded samples.
    pub carried: (u64, u64),
    /// Second by second.
    pub throughput: Throughput,
    /// What `Name()` answered.
    pub name: Option<NameAnswer>,
    /// Share of right answers.
    pub accuracy: Option<f64>,
    /// What verification found, if responses were verified.
    pub verified: Option<Findings>,
    /// Where answers are tokens that their engine counts.
    pub tokens: Option<TokenEnd>,
    /// When the run began.
    pub started: SystemTime,
    /// From the first sample to the last.
    pub duration: Duration,
}

/// What a run of tokens counted beside its histograms.
#[derive(Clone, Debug, Default)]
pub struct TokenEnd {
    /// When tokens left the accelerator.
    pub stream: Stream,
    /// LoadGen measured tokens: an answer that is none is an error.
    pub measured: bool,
    /// First tokens reported to LoadGen, where it wants them.
    pub first_tokens: Option<u64>,
    /// Parts handed over.
    pub parts_taken: u64,
    /// What was wrong.
    pub found: TokenFindings,
}

impl Ended<'_> {
    /// The summary, and the exit code that follows.
    pub fn summary(&self) -> (Summary, ExitCode) {
        let mut run = self.record();
        let agrees = run.close();
        let (code, reason) = self.verdict(agrees, &run.mismatches);
        let valid = match code {
            ExitCode::Good => run.valid,
            _ => Some(false),
        };
        run.valid = valid;
        let own_word = code == ExitCode::Invalid && self.token_faults().1.as_ref() == Some(&reason);
        if code > ExitCode::Invalid || own_word {
            run.reasons.insert(0, reason.clone());
        }
        run.exit = Exit {
            code: code.code(),
            reason,
        };
        let answer = self.name.clone().unwrap_or_default();
        let summary = Summary {
            node: self.node.to_owned(),
            name: answer.name,
            name_round_trip_us: answer.round_trip.map(|d| d.as_nanos() as f64 / 1000.0),
            run,
        };
        (summary, code)
    }

    fn record(&self) -> RunRecord {
        let test = &self.settings.test;
        let answered = self.system.ledger.answered;
        let (fabric, loopback) = self.fabric;
        let throughput = self.throughput.report();
        let outcome = self.outcome.as_ref();
        let seconds = self.duration.as_secs_f64();
        let judged = outcome.map(|o| o.verdict).unwrap_or(Word::NotJudged);
        RunRecord {
            scenario: test.scenario.name().to_owned(),
            mode: mode(test.mode),
            fabric: fabric.to_owned(),
            fabric_note: loopback.then(|| LOOPBACK_NOTE.to_owned()),
            valid: match judged {
                Word::Valid => Some(true),
                Word::Invalid => Some(false),
                Word::NotJudged => None,
            },
            reasons: outcome.map(reasons).unwrap_or_default(),
            samples: answered,
            per_s: per_s(outcome, answered, seconds),
            target_qps: self
                .settings
                .target_qps()
                .filter(|_| test.mode != TestMode::AccuracyOnly),
            duration_s: seconds,
            accuracy: self.accuracy,
            stages: self.histograms.table(),
            uneven: self.histograms.uneven(),
            tokens: self.tokens(seconds),
            throughput,
            carried: Carried::new(self.carried.0, self.carried.1, seconds),
            system: self.system.clone(),
            ..RunRecord::default()
        }
    }

    /// Times of tokens, beside LoadGen's bounds on them, which Server alone has.
    fn tokens(&self, seconds: f64) -> Option<TokenRecord> {
        let (end, histograms) = (self.tokens.as_ref()?, self.histograms.tokens()?);
        let test = &self.settings.test;
        let bounded = end.measured && test.scenario == Scenario::Server;
        let limit = |ns: u64| bounded.then_some(ns as f64 / 1000.0);
        let first = end.first_tokens.is_some() || end.stream != Stream::None;
        let record = histograms.record_of(seconds, first);
        Some(TokenRecord {
            stream: end.stream,
            per_s: tokens_per_s(self.outcome.as_ref()).unwrap_or(record.per_s),
            ttft_limit_us: limit(test.server_ttft_latency),
            tpot_limit_us: limit(test.server_tpot_latency),
            parts_taken: end.parts_taken,
            first_tokens: end.first_tokens,
            too_short: end.found.too_short,
            contradicted: end.found.contradicted,
            faults: end.found.faults.clone(),
            ..record
        })
    }

    /// Answers that contradict what was reported, or that are none; the first in words.
    fn token_faults(&self) -> (Option<String>, Option<String>) {
        let Some(found) = self.tokens.as_ref().map(|t| &t.found) else {
            return (None, None);
        };
        let said = |n: u64, what: &str, word: &str| {
            let first = found.faults.iter().find(|f| f.contains(word));
            let first = first.map_or_else(String::new, |f| format!("; the first: {f}"));
            (n > 0).then(|| format!("{n} {what}{first}"))
        };
        (
            said(
                found.contradicted,
                "samples were sent again and began with another token than was reported",
                "was sent again",
            ),
            said(
                found.too_short,
                "answers were not two tokens or more",
                "was answered with",
            ),
        )
    }

    /// How the process ends, and why.
    fn verdict(&self, agrees: bool, mismatches: &[String]) -> (ExitCode, String) {
        // A wrong answer is worse than a lost peer, and
        // what was never answered is the lost peer's doing.
        let wrong = self
            .verified
            .as_ref()
            .filter(|v| v.mismatches + v.duplicates > 0 || self.failure.is_none());
        if let Some(complaint) = wrong.and_then(Findings::complaint) {
            return (ExitCode::Mismatch, complaint);
        }
        let (contradicted, too_short) = self.token_faults();
        if let Some(complaint) = contradicted {
            return (ExitCode::Mismatch, complaint);
        }
        if let Some(failure) = &self.failure {
            return (failure.code, failure.cause.clone());
        }
        if !agrees {
            let all = mismatches.join("; ");
            return (ExitCode::Mismatch, format!("counts do not agree: {all}"));
        }
        if let Some(complaint) = too_short {
            return (ExitCode::Invalid, complaint);
        }
        let Some(outcome) = &self.outcome else {
            return (ExitCode::Lost, "LoadGen came to no result".to_owned());
        };
        if outcome.verdict == Word::Invalid {
            return (
                ExitCode::Invalid,
                "LoadGen says INVALID; see mlperf_log_summary.txt".to_owned(),
            );
        }
        if outcome.errors > 0 {
            let first = outcome.error_messages.first().map_or("", String::as_str);
            let n = outcome.errors;
            return (
                ExitCode::Invalid,
                format!("LoadGen logged {n} errors; the first: {first}"),
            );
        }
        match outcome.verdict {
            Word::Valid => (ExitCode::Good, "valid".to_owned()),
            _ => (ExitCode::Good, "complete".to_owned()),
        }
    }

    /// Writes everything into the result folder.
    ///
    /// # Errors
    /// [`ReportError`] names the file.
    pub fn write(&self, summary: &Summary, code: ExitCode) -> Result<(), ReportError> {
        let folder = self.settings.folder();
        let put = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            fs::write(&path, bytes).map_err(|source| ReportError::Write { path, source })
        };
        fs::create_dir_all(folder).map_err(|source| ReportError::Write {
            path: folder.to_owned(),
            source,
        })?;
        let no_tokens = summary.run.tokens.as_ref().is_some_and(|t| t.too_short > 0);
        if code > ExitCode::Invalid || no_tokens {
            put(
                INVALID_FILE,
                format!("{}\n", summary.run.exit.reason).as_bytes(),
            )?;
        }
        let mut json = serde_json::to_vec_pretty(summary).map_err(|e| ReportError::Write {
            path: folder.join(SUMMARY_FILE),
            source: io::Error::other(e),
        })?;
        json.push(b'\n');
        put(SUMMARY_FILE, &json)?;
        self.histograms
            .save(folder, HISTOGRAMS, self.started, self.duration)?;
        Ok(())
    }
}

/// Removes what an earlier run may have left in the folder and this one must not be taken for:
/// LoadGen's logs too, as a run that does not begin writes none of its own. Logs with a date in
/// their names stay: they say which run they are of.
pub fn clear(settings: &Settings) -> Result<(), ReportError> {
    let folder = settings.folder();
    let mut paths = Vec::new();
    if !settings.log.prefix_with_datetime {
        let logs = settings.log.files();
        paths.extend([logs.summary, logs.detail, logs.accuracy, logs.trace]);
    }
    let histograms = Histograms::file_names(HISTOGRAMS);
    paths.extend(histograms.iter().map(|name| folder.join(name)));
    // What marks an invalid run goes last: should anything here fail, it still stands.
    paths.extend([SUMMARY_FILE, INVALID_FILE].map(|name| folder.join(name)));
    for path in paths {
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(ReportError::Write { path, source }),
        }
    }
    Ok(())
}

/// The page on the screen.
pub fn print(summary: &Summary) {
    let out = io::stdout();
    let text = summary.text(out.is_terminal());
    // Nobody may be reading any more; the files are written.
    let _ = writeln!(out.lock(), "{text}");
}

fn mode(mode: TestMode) -> Mode {
    match mode {
        TestMode::AccuracyOnly => Mode::Accuracy,
        TestMode::FindPeakPerformance => Mode::FindPeak,
        TestMode::PerformanceOnly | TestMode::SubmissionRun => Mode::Performance,
    }
}

fn reasons(outcome: &TestOutcome) -> Vec<String> {
    let errors = outcome.error_messages.iter();
    let errors = errors.map(|m| format!("LoadGen logged an error: {m}"));
    outcome.reasons.iter().cloned().chain(errors).collect()
}

/// LoadGen's figure where it is a rate; else samples over time.
fn per_s(outcome: Option<&TestOutcome>, samples: u64, seconds: f64) -> f64 {
    match outcome.and_then(|o| o.figure) {
        Some(Figure::CompletedSamplesPerSecond(r) | Figure::SamplesPerSecond(r)) => r,
        _ if seconds > 0.0 => (samples as f64 / seconds * 1000.0).round() / 1000.0,
        _ => 0.0,
    }
}

/// LoadGen's own figure of tokens, where it gives one.
fn tokens_per_s(outcome: Option<&TestOutcome>) -> Option<f64> {
    let statistics = &outcome?.statistics;
    let names = ["Completed tokens per second", "Tokens per second"];
    names.iter().find_map(|name| statistics.get(*name)).copied()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path};

    use loadgen_bridge::{Latencies, LogSettings, TestSettings};
    use qdl::stats::{Ledger, SampleTimes, TokenSizes, TokenTime};

    use super::*;

    fn settings(folder: &Path) -> Settings {
        Settings {
            test: TestSettings {
                scenario: Scenario::Server,
                server_target_qps: 50.0,
                ..TestSettings::default()
            },
            log: LogSettings {
                outdir: folder.to_owned(),
                ..LogSettings::default()
            },
            audit: None,
        }
    }

    fn outcome(settings: &Settings, verdict: Word) -> TestOutcome {
        TestOutcome {
            verdict,
            reasons: vec![],
            figure: Some(Figure::CompletedSamplesPerSecond(49.5)),
            latencies: Latencies::default(),
            sut_name: String::new(),
            name_duration_ns: None,
            errors: 0,
            warnings: 0,
            error_messages: vec![],
            statistics: BTreeMap::new(),
            parameters: BTreeMap::new(),
            files: settings.log.files(),
        }
    }

    /// A run of five samples in which everything went well.
    fn ended(settings: &Settings) -> Ended<'_> {
        let mut histograms = Histograms::new();
        (0..5).for_each(|_| histograms.record(&SampleTimes::default()));
        let mut throughput = Throughput::new(0);
        throughput.sample(2_000_000_000, 5);
        Ended {
            node: "front-01",
            settings,
            outcome: Some(outcome(settings, Word::Valid)),
            failure: None,
            fabric: ("tcp", true),
            system: SystemRecord {
                ledger: Ledger {
                    issued: 5,
                    answered: 5,
                    posted: 5,
                    responses: 5,
                    ..Ledger::default()
                },
                ..SystemRecord::default()
            },
            histograms,
            carried: (500, 40),
            throughput,
            name: Some(NameAnswer {
                name: "Network SUT: a".to_owned(),
                round_trip: Some(Duration::from_micros(120)),
            }),
            accuracy: None,
            verified: None,
            tokens: None,
            started: SystemTime::UNIX_EPOCH,
            duration: Duration::from_secs(2),
        }
    }

    fn failure(code: ExitCode) -> Option<Failure> {
        Some(Failure {
            code,
            cause: "dgx-01 is gone".to_owned(),
        })
    }

    #[test]
    fn a_good_run_is_valid() {
        let s = settings(Path::new("x"));
        let (summary, code) = ended(&s).summary();
        assert_eq!((code, summary.run.valid), (ExitCode::Good, Some(true)));
        assert_eq!(summary.name_round_trip_us, Some(120.0));
        assert_eq!(
            (summary.run.per_s, summary.run.target_qps),
            (49.5, Some(50.0))
        );
        assert_eq!(summary.run.fabric_note.as_deref(), Some(LOOPBACK_NOTE));
        assert_eq!(summary.run.throughput.per_second, [2, 3]);
    }

    #[test]
    fn an_accuracy_run_is_complete_and_not_judged() {
        let mut s = settings(Path::new("x"));
        s.test.mode = TestMode::AccuracyOnly;
        let mut e = ended(&s);
        e.outcome = Some(TestOutcome {
            figure: None,
            ..outcome(&s, Word::NotJudged)
        });
        let (summary, code) = e.summary();
        assert_eq!((code, summary.run.valid), (ExitCode::Good, None));
        assert_eq!((summary.run.per_s, summary.run.target_qps), (2.5, None));
    }

    #[test]
    fn each_ending_has_its_code() {
        let s = settings(Path::new("x"));
        let code = |spoil: fn(&mut Ended<'_>, &Settings)| {
            let mut e = ended(&s);
            spoil(&mut e, &s);
            let (summary, code) = e.summary();
            assert_eq!(summary.run.valid, Some(false));
            assert_eq!(summary.run.exit.code, code.code());
            code
        };
        assert_eq!(
            code(|e, s| e.outcome = Some(outcome(s, Word::Invalid))),
            ExitCode::Invalid
        );
        assert_eq!(
            code(|e, _| e.outcome.as_mut().expect("there").errors = 1),
            ExitCode::Invalid
        );
        assert_eq!(
            code(|e, _| e.failure = failure(ExitCode::Lost)),
            ExitCode::Lost
        );
        assert_eq!(
            code(|e, _| e.failure = failure(ExitCode::Interrupted)),
            ExitCode::Interrupted
        );
        assert_eq!(code(|e, _| e.system.ledger.issued = 6), ExitCode::Mismatch);
        assert_eq!(
            code(|e, _| {
                e.verified = Some(Findings {
                    lost: 1,
                    ..Findings::default()
                });
            }),
            ExitCode::Mismatch
        );
        // After an abort it is no wonder that samples were not answered; a wrong answer is wrong.
        assert_eq!(
            code(|e, _| {
                e.failure = failure(ExitCode::Lost);
                e.verified = Some(Findings {
                    lost: 1,
                    ..Findings::default()
                });
            }),
            ExitCode::Lost
        );
        assert_eq!(
            code(|e, _| {
                e.failure = failure(ExitCode::Lost);
                e.verified = Some(Findings {
                    mismatches: 1,
                    ..Findings::default()
                });
            }),
            ExitCode::Mismatch
        );
        assert_eq!(code(|e, _| e.outcome = None), ExitCode::Lost);
    }

    /// The same run with answers of three tokens.
    fn of_tokens(settings: &Settings) -> Ended<'_> {
        let mut histograms = Histograms::of_tokens(TokenSizes {
            input: 4,
            output: 4,
        });
        let times = SampleTimes {
            seen_ns: 5_000,
            first_ns: 1_000,
            completed_ns: 5_000,
            bytes_in: 12,
            parts: 2,
            ..SampleTimes::default()
        };
        (0..5).for_each(|_| histograms.record(&times));
        Ended {
            histograms,
            tokens: Some(TokenEnd {
                stream: Stream::First,
                measured: true,
                first_tokens: Some(5),
                parts_taken: 5,
                found: TokenFindings::default(),
            }),
            ..ended(settings)
        }
    }

    #[test]
    fn a_run_of_tokens_says_when_they_came_beside_loadgens_bounds() {
        let mut s = settings(Path::new("x"));
        s.test.server_ttft_latency = 2_000_000_000;
        s.test.server_tpot_latency = 100_000_000;
        let (summary, code) = of_tokens(&s).summary();
        assert_eq!(code, ExitCode::Good, "{:?}", summary.run.mismatches);
        let t = summary.run.tokens.as_ref().expect("tokens");
        assert_eq!((t.tokens, t.per_s, t.first_tokens), (15, 7.5, Some(5)));
        assert_eq!(t.times[&TokenTime::Ttft].p99_us, 1.0);
        assert_eq!(t.times[&TokenTime::Tpot].p99_us, 2.0);
        let json = serde_json::to_value(&summary).expect("JSON");
        assert_eq!(json["tokens"]["ttft_limit_us"], 2_000_000.0);
        assert_eq!(json["tokens"]["times"]["tpot"]["p99_us"], 2.0);
        let text = summary.text(false);
        for words in [
            "2.00 s\n",
            "100 ms\n",
            "15 answered: 7.50/s; stream first, 2.00 parts",
        ] {
            assert!(text.contains(words), "{text} lacks {words}");
        }
        assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
        // Offline has no bounds.
        s.test.scenario = Scenario::Offline;
        let (summary, _) = of_tokens(&s).summary();
        let t = summary.run.tokens.expect("tokens");
        assert_eq!((t.ttft_limit_us, t.tpot_limit_us), (None, None));
    }

    #[test]
    fn a_run_without_tokens_says_nothing_of_them() {
        let s = settings(Path::new("x"));
        let (summary, _) = ended(&s).summary();
        let json = serde_json::to_value(&summary).expect("JSON");
        assert!(json.get("tokens").is_none());
        let text = summary.text(false);
        assert!(!text.contains("TTFT") && !text.contains("tokens"), "{text}");
    }

    #[test]
    fn faults_of_tokens_have_their_codes_and_words() {
        let folder = tempfile::tempdir().expect("a folder");
        let s = settings(folder.path());
        let end = |spoil: &dyn Fn(&mut TokenEnd)| {
            let mut e = of_tokens(&s);
            spoil(e.tokens.as_mut().expect("tokens"));
            let (summary, code) = e.summary();
            e.write(&summary, code).expect("written");
            assert_eq!(summary.run.valid, Some(false));
            let invalid = fs::read_to_string(folder.path().join(INVALID_FILE)).expect("there");
            assert_eq!(invalid.trim_end(), summary.run.exit.reason);
            (code, summary)
        };
        let (code, summary) = end(&|t| {
            t.found.too_short = 2;
            t.found.faults = vec!["engine: sample 7 was answered with 1 token by acc-a".to_owned()];
        });
        assert_eq!(code, ExitCode::Invalid);
        let words = "2 answers were not two tokens or more; the first: engine: sample 7 was";
        assert!(summary.run.exit.reason.starts_with(words));
        assert_eq!(summary.run.reasons[0], summary.run.exit.reason);
        let json = serde_json::to_value(&summary).expect("JSON");
        assert_eq!(json["tokens"]["too_short"], 2);
        assert!(summary.text(false).contains("2 answers were no two tokens"));

        let (code, summary) = end(&|t| {
            t.found.contradicted = 1;
            t.found.faults = vec!["sample 5 was sent again, and began with token 3".to_owned()];
        });
        assert_eq!(code, ExitCode::Mismatch);
        assert!(summary.run.exit.reason.contains("sample 5 was sent again"));

        let (code, summary) = end(&|t| t.first_tokens = Some(4));
        assert_eq!(code, ExitCode::Mismatch);
        assert!(
            summary
                .run
                .exit
                .reason
                .contains("first tokens reported is 4")
        );
    }

    #[test]
    fn an_aborted_run_marks_its_folder_and_the_next_one_clears_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let s = settings(&folder.path().join("deep/er"));
        let mut e = ended(&s);
        e.failure = failure(ExitCode::Lost);
        let (summary, code) = e.summary();
        e.write(&summary, code).expect("written");
        let read = |name: &str| fs::read_to_string(s.folder().join(name)).expect("there");
        assert_eq!(read(INVALID_FILE), "dgx-01 is gone\n");
        let json: serde_json::Value = serde_json::from_str(&read(SUMMARY_FILE)).expect("JSON");
        assert_eq!(json["valid"], false);
        assert_eq!(json["exit"]["code"], 3);
        assert_eq!(json["reasons"][0], "dgx-01 is gone");
        assert!(s.folder().join("latency.hlog").is_file());
        let logs = s.log.files();
        for log in [logs.summary, logs.detail, logs.accuracy, logs.trace] {
            fs::write(log, "LoadGen's").expect("written");
        }
        fs::write(s.folder().join("notes.txt"), "somebody's own").expect("written");
        clear(&s).expect("cleared");
        let left = fs::read_dir(s.folder()).expect("a folder");
        let left: Vec<_> = left.map(|e| e.expect("an entry").file_name()).collect();
        assert_eq!(left, ["notes.txt"]);
        clear(&s).expect("nothing to clear");
        clear(&settings(Path::new("/no/such/folder"))).expect("no folder, nothing to clear");
    }

    #[test]
    fn logs_that_carry_their_date_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut s = settings(folder.path());
        s.log.prefix_with_datetime = true;
        let log = folder
            .path()
            .join("mlperf_log_2026-11-21T12:00:00Z_summary.txt");
        fs::write(&log, "LoadGen's").expect("written");
        clear(&s).expect("cleared");
        assert!(log.is_file());
    }
}
