//! Checks logged answers: whole logs before the tree is built, the cut log in a tree, and the
//! answers of compliance tests.

use loadgen_log::{AccuracyLog, AccuracyRecord, LogError};

use super::*;
use crate::{
    build::{FoundRun, Material},
    manifest::sha256_of_file,
};

/// Checks that a tree's log is the run's log, or that log as the official script cuts it.
pub(super) fn kept(check: &mut TreeCheck<'_>, run: &CheckedRun, log: &Path) {
    let (Some(manifest), Ok(found)) = (&run.manifest, sha256_of_file(log)) else {
        return;
    };
    let (written, kind) = (run.hash_of(loadgen_log::ACCURACY), &run.kind);
    if written.is_some() && ![written, manifest.accuracy_cut.as_ref()].contains(&Some(&found)) {
        let what = match &manifest.accuracy_cut {
            Some(_) => format!(
                "it is neither the log that the {kind} run wrote, nor its begin and end as \
                 truncate_accuracy_log.py leaves them"
            ),
            None => {
                format!("the {kind} run's record does not say what the log is cut to: run it again")
            }
        };
        check.say(RECORD_LOG, log, what);
    }
}

/// Checks the answers of a test that keeps tokens, as its verifier does; reports the first fault.
pub(super) fn tokens(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, log: &Path, eos: u64) {
    let Ok(records) = AccuracyLog::open(log) else {
        return;
    };
    // LoadGen takes no first token where all samples are one query.
    let timed = !check.round.is_one_query(&result.id.scenario);
    let bytes = element(result.model);
    let fault = |record: Result<AccuracyRecord, LogError>| match record {
        Ok(record) => token_fault(&record, bytes, timed, eos)
            .map(|what| format!("sample {}: {what}", record.qsl_idx)),
        Err(error) => Some(at_line(&error)),
    };
    let mut records = records.map(fault).peekable();
    let what = match records.peek() {
        None => Some("it has no answer".to_owned()),
        Some(_) => records.flatten().next(),
    };
    if let Some(what) = what {
        check.say(TEST_ANSWERS, log, what);
    }
}

fn at_line(error: &LogError) -> String {
    format!("line {}: {}", error.line, error.why)
}

fn token_fault(record: &AccuracyRecord, bytes: usize, timed: bool, eos: u64) -> Option<String> {
    let data = &record.data;
    let (length, count) = (data.len(), i64::try_from(data.len() / bytes).ok());
    if length % bytes != 0 || count != record.token_count {
        let reported = record.token_count;
        let reported = reported.map_or("none".to_owned(), |n| n.to_string());
        let what = format!("{length} bytes, and the SUT reported {reported} tokens");
        return Some(what);
    }
    let first = record.token_data.as_deref().unwrap_or_default();
    if timed && (first.is_empty() || !data.starts_with(first)) {
        return Some("its answer does not begin with its first token".to_owned());
    }
    let value = |token: &[u8]| token.iter().rev().fold(0, |v, b| (v << 8) | u64::from(*b));
    let mut tokens = data.chunks_exact(bytes).rev().map(value);
    (tokens.next() == Some(eos) && tokens.next() == Some(eos))
        .then(|| "its answer ends with the end of sequence twice".to_owned())
}

/// Checks runs before their logs are cut for the tree. An accuracy log must be whole and have one
/// answer for each sample; where the model's samples have an order, the answers of each log must
/// keep it.
pub fn check_runs(material: &Material<'_>, tree: &Tree) -> Vec<RuleFinding> {
    let mut check = TreeCheck::new(tree, material.round, None);
    for run in material.runs {
        let id = &material.result_id(run);
        let Some(result) = check.result(id) else {
            continue;
        };
        for kind in &run.kinds {
            if *kind == RunKind::Accuracy
                || matches!(kind, RunKind::Test(_)) && result.model.in_order
            {
                whole(&mut check, &result, run, kind);
            }
        }
    }
    check.found
}

fn whole(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, run: &FoundRun, kind: &RunKind) {
    let log = run.folder.join(loadgen_log::ACCURACY);
    let at = layout::run_folder(&result.folder, kind).join(loadgen_log::ACCURACY);
    let mut say = |rule, what: String| check.say(rule, &at, what);
    let written = run.manifest.logs.get(loadgen_log::ACCURACY);
    if let (Some(written), Ok(found)) = (written, sha256_of_file(&log))
        && *written != found
    {
        say(RECORD_LOG, "it is not the log that the run wrote".into());
    }
    let records = match AccuracyLog::open(&log) {
        Ok(records) => records,
        Err(error) => return say(ACCURACY_LOG, error.why),
    };
    let wanted = match kind {
        RunKind::Accuracy => result.model.accuracy_samples(&result.id.scenario),
        _ => 0,
    };
    let mut seen = vec![false; usize::try_from(wanted).unwrap_or(0)];
    let (mut bytes, mut times) = (0, Vec::new());
    for record in records {
        let record = match record {
            Ok(record) => record,
            Err(error) => return say(ACCURACY_LOG, at_line(&error)),
        };
        if result.model.in_order {
            times.push((record.seq_id, time_of(&record)));
        }
        bytes += record.data.len();
        let sample = record.qsl_idx;
        let slot = usize::try_from(sample).ok().and_then(|n| seen.get_mut(n));
        let what = match slot {
            _ if *kind != RunKind::Accuracy => continue,
            None => format!("sample {sample}: the data set ends before it"),
            Some(true) => format!("sample {sample} has two answers"),
            Some(_) if record.data.is_empty() => format!("the answer to sample {sample} is empty"),
            Some(seen) => {
                *seen = true;
                continue;
            }
        };
        return say(ACCURACY_SAMPLES, what);
    }
    if let Some(missing) = seen.iter().position(|seen| !seen) {
        let n = seen.iter().filter(|seen| !**seen).count();
        let what = format!("{n} samples have no answer; the first is {missing}");
        say(ACCURACY_SAMPLES, what);
    }
    times.sort_by_key(|(issued, _)| *issued);
    if let Some([before, after]) = times.windows(2).find(|pair| pair[0].1 > pair[1].1) {
        let (before, after) = (
            format!("query {} before it has {}", before.0, before.1),
            format!("query {} has timestamp {}", after.0, after.1),
        );
        say(RUN_ORDER, format!("{after}, {before}"));
    }
    let limits = result.model.accuracy_of(&result.id.scenario).iter();
    let mut limits = limits.filter(|figure| figure.counted);
    if let Some(most) = limits.find_map(|a| a.most()) {
        let mean = (bytes / element(result.model)) as f64 / seen.len().max(1) as f64;
        if mean > most {
            let what = format!("answers have {mean:.1} tokens, at most {most:.1}");
            say(ACCURACY_HIGH, what);
        }
    }
}

/// The timestamp of an answer's sample, its first number, as TEST08's verifier reads it; an answer
/// without one comes before all others.
fn time_of(record: &AccuracyRecord) -> f32 {
    let first = record.data.first_chunk();
    first.map_or(f32::NEG_INFINITY, |bytes| f32::from_le_bytes(*bytes))
}

/// Bytes of an element of an answer.
fn element(model: &Model) -> usize {
    match &*model.dtype {
        "int64" => 8,
        "byte" => 1,
        _ => 4,
    }
}
