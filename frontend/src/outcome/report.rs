//! The results of a run: `summary.json`, histograms, the page on the screen, and the exit code.

use std::{
    fs,
    io::{self, Write},
    time::{Duration, SystemTime},
};

use anyhow::anyhow;
use fabric::wire::Stream;
use loadgen_bridge::{AccuracyLog, TestMode, TestOutcome, Verdict as Word};
use qdl::counters::{Histograms, Throughput};
use record::{
    BatchSizes, Cause, Goodput, Limits, LoadgenRecord, Manifest, Mode, PhaseKind, PhaseRecord,
    RunExit, RunFolder, RunRecord, SUMMARY, Stage, Summary, SystemRecord, TIMELINE, TokenRecord,
    rate_per_s, secrets, timeline::Timeline,
};
use report::{
    causes::judge,
    screen,
    text::{with_events, with_losses, with_refusals},
};
use submission::{Name, manifest};

use crate::{
    accuracy,
    backend::sut::NameAnswer,
    loadgen::exit::{ExitCode, Failure},
    loadgen::{
        phases::{self, PhaseShare},
        tokens::TokenFindings,
        verify::Findings,
    },
    outcome::{
        reasons::{self, JudgedRun},
        result::{self, OwnRecords},
    },
    settings::Settings,
};

/// Name of the file that marks a run's folder: the run must not count, whatever LoadGen wrote.
pub const INVALID_FILE: &str = "INVALID";
/// Name of the file with the share of right answers, in the form of MLCommons' own scripts.
pub const ACCURACY_FILE: &str = "accuracy.txt";

/// All data of a finished run, whatever its end.
pub struct FinishedRun<'a> {
    pub node: &'a str,
    pub settings: &'a Settings,
    /// LoadGen's result, if its test ended.
    pub outcome: Option<TestOutcome>,
    /// Cause of the abort, if the run was aborted.
    pub failure: Option<Failure>,
    /// What was counted and noted; the summary adds LoadGen's result and the verdict.
    pub counted: RunRecord,
    /// Merged histograms of all NIC threads and phases.
    pub histograms: Histograms,
    pub phases: Vec<PhaseShare>,
    pub throughput: Throughput,
    pub name: Option<NameAnswer>,
    /// The fault if LoadGen's figures are wrong because the wall clock was set.
    pub clock_fault: Option<String>,
    /// Findings of the verification, if enabled.
    pub verified: Option<Findings>,
    /// Token counts, if answers are tokens that their engine counts.
    pub tokens: Option<TokenCounts>,
    pub timeline: Timeline,
    pub started: SystemTime,
}

/// Counts of a run with tokens, besides its histograms.
#[derive(Clone, Debug, Default)]
pub struct TokenCounts {
    /// When tokens leave the accelerator.
    pub stream: Stream,
    /// Number of first tokens reported to LoadGen, if LoadGen measures them.
    pub first_tokens: Option<u64>,
    pub parts_taken: u64,
    pub found: TokenFindings,
}

impl FinishedRun<'_> {
    fn duration(&self) -> Duration {
        Duration::try_from_secs_f64(self.counted.duration_s).unwrap_or_default()
    }

    pub fn summary(&self) -> (Summary, ExitCode) {
        let mut run = self.record();
        let agrees = run.close();
        run.limits = judge(&run);
        if !matches!(self.own_data(), Some(Ok(_))) {
            run.reasons = self.reasons(&run.limits);
        }
        let (code, reason) = self.verdict(agrees, &run);
        let valid = match code {
            // A compliance test that sets its own length needs no VALID.
            ExitCode::Good if self.settings.own_length => None,
            ExitCode::Good => run.valid,
            _ => Some(false),
        };
        run.valid = valid;
        let own_word = code == ExitCode::Invalid && self.own_fault().as_ref() == Some(&reason);
        if code > ExitCode::Invalid || own_word {
            run.reasons.insert(0, reason.clone());
        }
        run.exit = RunExit {
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
        let test = &self.settings.runs;
        let answered = self.counted.system.ledger.answered;
        let throughput = self.throughput.report();
        let outcome = self.outcome.as_ref();
        let seconds = self.counted.duration_s;
        let judged = outcome.map(|o| o.verdict).unwrap_or(Word::NotJudged);
        let phases = self.phases();
        let loadgen =
            outcome.map(|o| result::record(o, self.settings.test.mode, self.judged(o, &phases)));
        // LoadGen's log names the scenario that ran: an audit.config overrides the settings.
        let scenario = outcome
            .and_then(|o| o.detail.scenario())
            .unwrap_or(test.scenario);
        let mode = result::mode(self.mode());
        let settings = self.settings.provenance.records(scenario);
        let rate = loadgen.as_ref().and_then(|l| l.completed_per_s);
        let per_s = rate.unwrap_or_else(|| rate_per_s(answered, seconds));
        let tokens = self.tokens(loadgen.as_ref(), seconds);
        RunRecord {
            scenario: scenario.name().to_owned(),
            mode,
            valid: match judged {
                Word::Valid => Some(true),
                Word::Invalid => Some(false),
                Word::NotJudged => None,
            },
            samples: answered,
            per_s,
            // Prefer find-peak's result to the configured rate.
            target_qps: loadgen
                .as_ref()
                .and_then(|l| l.peak_qps)
                .or_else(|| self.settings.target_qps())
                .filter(|_| mode != Mode::Accuracy),
            goodput: self.goodput(&phases, loadgen.as_ref(), per_s, tokens.as_ref()),
            loadgen,
            phases,
            settings: settings
                .into_iter()
                .chain(self.counted.settings.clone())
                .collect(),
            setting_notes: self.setting_notes(),
            stages: self.histograms.table(),
            uneven: self.histograms.uneven(),
            verified: self.verified.as_ref().map(|v| v.counts),
            tokens,
            throughput,
            system: self.system(),
            ..self.counted.clone()
        }
    }

    /// Notes on settings, and on the copies whose values are masked.
    fn setting_notes(&self) -> Vec<String> {
        let mut notes = self.settings.provenance.notes();
        for path in manifest::files(self.settings.folder()) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let (path, n) = (path.display(), text.matches(secrets::MASK).count());
            if n > 0 {
                notes.push(format!("{path}: values that look like keys, masked: {n}"));
            }
        }
        notes
    }

    /// The counts of the system under test. Adds each accelerator's batching from the copy of its
    /// configuration.
    fn system(&self) -> SystemRecord {
        let mut system = self.counted.system.clone();
        let copies = self.settings.folder().join(record::COPIES);
        for a in &mut system.accelerators {
            let Ok(node) = Name::new(&a.node) else {
                continue;
            };
            let copy = copies.join(manifest::accelerator_yaml(&node));
            let text = fs::read_to_string(&copy).unwrap_or_default();
            let config =
                engines::config::parse_accelerator(&text, &copy.to_string_lossy(), &copies).ok();
            let batching = config.and_then(|(_, mut engine)| {
                // A model of fixed batch size runs no larger batch.
                if let Ok(most @ 1..) = usize::try_from(a.used.engine.max_batch) {
                    engine.max_batch = engine.max_batch.min(most);
                }
                engine.batching()
            });
            a.batching = batching.unwrap_or_default();
        }
        system
    }

    /// The mode that LoadGen ran; without a result, the mode of the settings.
    fn mode(&self) -> TestMode {
        let ran = self.outcome.as_ref().and_then(|o| o.detail.mode());
        ran.unwrap_or(self.settings.runs.mode)
    }

    /// The records of the phases under LoadGen's names.
    fn phases(&self) -> Vec<PhaseRecord> {
        let logged = self.outcome.as_ref().map(|o| &o.detail.phases[..]);
        phases::records(&self.phases, logged.unwrap_or_default(), self.mode())
    }

    /// This node's own records of the phase that LoadGen's result describes.
    fn judged<'a>(
        &'a self,
        outcome: &TestOutcome,
        phases: &'a [PhaseRecord],
    ) -> Option<OwnRecords<'a>> {
        let peak = outcome.detail.peak_qps;
        let mut both = phases.iter().zip(&self.phases).rev();
        let judged = both.find(|(p, _)| match p.kind {
            PhaseKind::Accuracy => false,
            PhaseKind::Performance => true,
            PhaseKind::Step => p.kept == Some(true) && p.asked_per_s == peak,
        });
        judged.map(|(p, PhaseShare { share, .. })| {
            let round_trips = share.histograms.stage(Stage::RoundTrip);
            OwnRecords {
                histograms: &share.histograms,
                stages: &p.stages,
                shortest_us: round_trips.min() as f64 / 1000.0,
                told_us: share.call_time.mean_us(),
            }
        })
    }

    /// Samples within LoadGen's limits, of the phase that LoadGen's result describes. `per_s` and
    /// `tokens` have the rates of all samples.
    fn goodput(
        &self,
        phases: &[PhaseRecord],
        loadgen: Option<&LoadgenRecord>,
        per_s: f64,
        tokens: Option<&TokenRecord>,
    ) -> Option<Goodput> {
        let loadgen = loadgen?;
        let part = |good: u64, all: u64| good as f64 / all.max(1) as f64;
        if let (Some(over), Some(all)) = (loadgen.over_limit, loadgen.queries) {
            let samples = all.saturating_sub(over);
            let share = part(samples, all);
            return Some(Goodput {
                samples,
                share,
                per_s: share * per_s,
                ..Goodput::default()
            });
        }
        let all = self.judged(self.outcome.as_ref()?, phases)?.histograms;
        let ([samples, good_tokens], counted) = (all.good()?, all.tokens()?.tokens());
        let own = part(samples, all.count());
        let share = own.min(loadgen.most_within_limits());
        let cap = |n: u64| match share < own {
            true => (n as f64 * share / own) as u64,
            false => n,
        };
        Some(Goodput {
            samples: cap(samples),
            at_most: share < own,
            tokens: Some(cap(good_tokens)),
            share,
            per_s: share * per_s,
            tokens_per_s: tokens.map(|t| part(cap(good_tokens), counted) * t.per_s),
        })
    }

    fn reasons(&self, limits: &Limits) -> Vec<String> {
        let stood = [Cause::Standstill, Cause::Accelerator];
        let mut standstill = limits.findings.iter();
        let standstill = standstill
            .find(|f| stood.contains(&f.cause))
            .map(|f| &*f.figure);
        let Some(outcome) = &self.outcome else {
            return Vec::new();
        };
        let record = result::record(outcome, self.settings.test.mode, None);
        reasons::reasons(&JudgedRun {
            outcome,
            record: &record,
            given: &self.settings.provenance,
            seconds: self.counted.duration_s,
            standstill,
        })
    }

    /// The reason why the run is not valid, whatever LoadGen says.
    fn own_fault(&self) -> Option<String> {
        let (_, too_short) = self.token_faults();
        too_short.or_else(|| self.clock_fault.clone())
    }

    /// For a test that collects data instead of a verdict, and ended without errors: the number of
    /// answers in the accuracy log, or the reason why the answers are incomplete.
    fn own_data(&self) -> Option<Result<u64, String>> {
        let outcome = self.outcome.as_ref().filter(|o| o.errors == 0)?;
        if !self.settings.own_length || outcome.verdict == Word::NotJudged {
            return None;
        }
        let number = |name: &str| outcome.detail.number(&format!("effective_{name}"));
        let target = number("accuracy_log_sampling_target").unwrap_or(0.0);
        let least = number("min_sample_count").unwrap_or(1.0);
        // LoadGen logs all samples if they are at most its sampling target, else a random part.
        let all = target >= least.max(1.0);
        let wanted = if all { least as u64 } else { 1 };
        let log = AccuracyLog::open(&outcome.files.accuracy);
        let read = log.and_then(|log| log.into_iter().try_fold(0, |n, r| r.map(|_| n + 1)));
        Some(match read {
            Ok(n) if n >= wanted => Ok(n),
            Ok(n) => Err(format!("its accuracy log has {n} answers of {wanted}")),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Token latencies and counts; the rate is LoadGen's if it has one.
    fn tokens(&self, loadgen: Option<&LoadgenRecord>, seconds: f64) -> Option<TokenRecord> {
        let (end, histograms) = (self.tokens.as_ref()?, self.histograms.tokens()?);
        let first = end.first_tokens.is_some() || end.stream != Stream::None;
        let record = histograms.record_of(seconds, first);
        let mut events = BatchSizes::default();
        for a in &self.counted.system.accelerators {
            events.merge(&a.used.engine.events);
        }
        Some(TokenRecord {
            stream: end.stream.to_string(),
            per_s: loadgen.and_then(|l| l.tokens_per_s).unwrap_or(record.per_s),
            events: events.row(),
            parts_taken: end.parts_taken,
            first_tokens: end.first_tokens,
            too_short: end.found.too_short,
            contradicted: end.found.contradicted,
            faults: end.found.faults.clone(),
            ..record
        })
    }

    /// Texts on answers that contradict a reported first token, and on malformed answers.
    fn token_faults(&self) -> (Option<String>, Option<String>) {
        let Some(found) = self.tokens.as_ref().map(|t| &t.found) else {
            return (None, None);
        };
        let text = |n: u64, what: &str, word: &str| {
            let first = found.faults.iter().find(|f| f.contains(word));
            let first = first.map_or_else(String::new, |f| format!("; the first: {f}"));
            (n > 0).then(|| format!("{n} {what}{first}"))
        };
        let other = "samples were sent again and began with another token than was reported";
        let short = "answers were not two tokens or more";
        (
            text(found.contradicted, other, "was sent again"),
            text(found.too_short, short, "was answered with"),
        )
    }

    fn verdict(&self, agrees: bool, run: &RunRecord) -> (ExitCode, String) {
        // A wrong answer outranks a lost peer; unanswered samples are a consequence of the lost
        // peer.
        let wrong = self
            .verified
            .as_ref()
            .filter(|v| v.counts.mismatches + v.counts.duplicates > 0 || self.failure.is_none());
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
            let all = run.mismatches.join("; ");
            return (ExitCode::Mismatch, format!("counts do not agree: {all}"));
        }
        if let Some(complaint) = too_short {
            return (ExitCode::Invalid, complaint);
        }
        let Some(outcome) = &self.outcome else {
            return (ExitCode::Lost, "LoadGen came to no result".to_owned());
        };
        match self.own_data() {
            Some(Ok(n)) => {
                let says = match outcome.verdict {
                    Word::Invalid => "; LoadGen says INVALID, which the test does not ask",
                    _ => "",
                };
                let words = format!(
                    "the compliance test's own data are complete: {n} answers are logged{says}"
                );
                return (ExitCode::Good, with_doubts(&words, run));
            }
            Some(Err(why)) => {
                let why = format!("the compliance test's own data are not complete: {why}");
                return (ExitCode::Invalid, why);
            }
            None => {}
        }
        if let Some(fault) = &self.clock_fault {
            return (ExitCode::Invalid, fault.clone());
        }
        if outcome.verdict == Word::Invalid {
            let first = run.reasons.first().cloned();
            let why = first.unwrap_or_else(|| "see mlperf_log_summary.txt".to_owned());
            return (ExitCode::Invalid, format!("LoadGen says INVALID: {why}"));
        }
        if outcome.errors > 0 {
            let first = run.reasons.first().cloned().unwrap_or_default();
            let n = outcome.errors;
            return (ExitCode::Invalid, format!("{n} errors of LoadGen; {first}"));
        }
        match outcome.verdict {
            Word::Valid => (ExitCode::Good, with_doubts("valid", run)),
            _ => (ExitCode::Good, with_doubts("complete", run)),
        }
    }

    /// Writes all result files into the run's folder, each whole or not at all. A run that may
    /// count gets its summary when all other files are written, and then loses the file INVALID.
    pub fn write(&self, summary: &Summary, code: ExitCode, left: &Manifest) -> anyhow::Result<()> {
        let folder = self.settings.folder();
        let failed = |name: &str| {
            let path = folder.join(name);
            move |e| anyhow!("cannot write {}: {}", path.display(), disk::words(&e))
        };
        let put = |name, text: String| disk::write(&folder.join(name), text).map_err(failed(name));
        fs::create_dir_all(folder).map_err(failed(""))?;
        let reason = &summary.run.exit.reason;
        let marked = code > ExitCode::Invalid || self.own_fault().is_some();
        let mark = marked.then(|| put(INVALID_FILE, format!("{reason}\n")));
        let accuracy = summary.run.labelled.as_ref();
        let accuracy = accuracy.map(|a| put(ACCURACY_FILE, accuracy::line(a)));
        let all = self.histograms.all();
        // One that cannot be written keeps none of the others back.
        let written = [
            mark.unwrap_or(Ok(())),
            accuracy.unwrap_or(Ok(())),
            record::write_timeline(folder, &self.timeline).map_err(failed(TIMELINE)),
            record::save(&all, folder, self.started, self.duration()).map_err(Into::into),
            manifest::end(left.clone(), folder, code.code(), reason).map_err(Into::into),
        ];
        let written = written.into_iter().collect::<anyhow::Result<()>>();
        if written.is_ok() || marked {
            record::write_summary(folder, summary).map_err(failed(SUMMARY))?;
        }
        written?;
        if marked {
            return Ok(());
        }
        match fs::remove_file(folder.join(INVALID_FILE)).map_err(|e| (e.kind(), e)) {
            Err((kind, e)) if kind != io::ErrorKind::NotFound => Err(failed(INVALID_FILE)(e)),
            _ => Ok(()),
        }
    }
}

/// A verdict, followed by the run's losses, refusals and events.
fn with_doubts(word: &str, run: &RunRecord) -> String {
    let system = &run.system;
    let failed = with_refusals(&system.refusals, system.ledger.refused);
    let lost = with_losses(&system.losses);
    let with = lost.into_iter().chain(failed).chain(with_events(run));
    with.fold(word.to_owned(), |words, with| format!("{words}, {with}"))
}

/// Prints the summary on standard output, with the tables of the whole report if `whole` is set.
pub fn print(run: &RunFolder, whole: bool, colors: bool) {
    // Ignore the error: standard output may be closed, and the files are written.
    let _ = write!(io::stdout(), "{}", screen(run, whole, colors));
}

pub fn print_json(summary: &Summary) {
    if let Ok(text) = serde_json::to_string_pretty(summary) {
        let _ = writeln!(io::stdout(), "{text}");
    }
}

#[cfg(test)]
pub(crate) mod tests;
