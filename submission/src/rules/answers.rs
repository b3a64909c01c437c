//! Checks logged answers: of an accuracy run in the whole log before the tree is built, in a tree
//! the cut log, and the answers of compliance tests.

use std::collections::BTreeMap;

use loadgen_log::{AccuracyLog, AccuracyRecord};

use super::*;
use crate::{
    build::{Material, Run},
    left::sha256_of_file,
    round::Answers,
};

/// End-of-sequence token that the official verifier assumes by default.
const EOS: u64 = 2;

/// Checks that a tree's log is the run's log, or its cut by the official script.
pub(super) fn kept(look: &mut Look<'_>, ran: &Ran, log: &Path) {
    let (Some(left), Ok(found)) = (&ran.left, sha256_of_file(log)) else {
        return;
    };
    let written = left.logs.get(loadgen_log::ACCURACY);
    if written.is_some() && ![written, left.accuracy_cut.as_ref()].contains(&Some(&found)) {
        let what = match &left.accuracy_cut {
            Some(_) => format!(
                "it is neither the log that the {} run wrote, nor its begin and end as \
                 truncate_accuracy_log.py leaves them",
                ran.run
            ),
            None => format!(
                "the {} run's record does not say what the log is cut to: run it again",
                ran.run
            ),
        };
        look.say(RECORD_LOG, log, what);
    }
}

/// Checks the answers of a test with [`Answers::Tokens`]; reports the first fault.
pub(super) fn tokens(look: &mut Look<'_>, result: &Result<'_>, log: &Path) {
    let Ok(records) = AccuracyLog::open(log) else {
        return;
    };
    let timed = result.place.scenario != *"Offline";
    let bytes = element(result.model);
    let mut any = false;
    for record in records {
        any = true;
        let wrong = match record {
            Ok(record) => match token_fault(&record, bytes, timed) {
                None => continue,
                Some(what) => format!("sample {}: {what}", record.qsl_idx),
            },
            Err(error) => format!("line {}: {}", error.line, error.why),
        };
        look.say(TEST_ANSWERS, log, wrong);
        return;
    }
    if !any {
        look.say(TEST_ANSWERS, log, "it has no answer");
    }
}

fn token_fault(record: &AccuracyRecord, bytes: usize, timed: bool) -> Option<String> {
    let AccuracyRecord {
        data,
        token_data,
        token_count,
        ..
    } = record;
    let count = data.len() / bytes;
    if data.len() % bytes != 0 || i64::try_from(count).ok() != *token_count {
        let told = token_count.map_or("none".to_owned(), |n| n.to_string());
        return Some(format!(
            "{} bytes, and LoadGen was told of {told} tokens",
            data.len()
        ));
    }
    let first = token_data.as_deref().unwrap_or_default();
    if timed && (first.is_empty() || !data.starts_with(first)) {
        return Some("its answer does not begin with its first token".to_owned());
    }
    let value = |token: &[u8]| token.iter().rev().fold(0, |v, b| (v << 8) | u64::from(*b));
    let mut tokens = data.chunks_exact(bytes).rev().map(value);
    (tokens.next() == Some(EOS) && tokens.next() == Some(EOS))
        .then(|| "its answer ends with the end of sequence twice".to_owned())
}

/// Checks runs before their logs are cut for the tree. An accuracy log must be whole and have one
/// answer for each sample; a test with [`Answers::Same`] must repeat the answers.
pub fn check_runs(material: &Material<'_>, tree: &Tree) -> Vec<Finding> {
    let (round, checker) = (material.round, None);
    let mut look = Look {
        tree,
        round,
        checker,
        found: Vec::new(),
    };
    for run in material.runs {
        let place = &material.place(run);
        let Some(model) = round.models.get(&place.model) else {
            continue;
        };
        let result = Result {
            place,
            model,
            folder: tree.scenario(place),
        };
        for kind in &run.kinds {
            match kind {
                Kind::Accuracy => accuracy(&mut look, &result, run),
                Kind::Test(test) if round.tests[test].answers == Some(Answers::Same) => {
                    let of =
                        |r: &&Run| material.place(r) == *place && r.kinds.contains(&Kind::Accuracy);
                    if let Some(reference) = material.runs.iter().find(of) {
                        same(&mut look, &result, kind, run, reference);
                    }
                }
                _ => {}
            }
        }
    }
    look.found
}

fn accuracy(look: &mut Look<'_>, result: &Result<'_>, run: &Run) {
    let log = run.folder.join(loadgen_log::ACCURACY);
    let at = layout::run_folder(&result.folder, &Kind::Accuracy).join(loadgen_log::ACCURACY);
    let make = command(look, result, &Kind::Accuracy);
    let mut say = |rule, what: String| look.say_make(rule, &at, what, make.clone());
    let written = run.left.logs.get(loadgen_log::ACCURACY);
    if let (Some(written), Ok(found)) = (written, sha256_of_file(&log))
        && *written != found
    {
        say(
            RECORD_LOG,
            "it is not the log that the run wrote".to_owned(),
        );
    }
    let wanted = result.model.accuracy_samples(&result.place.scenario);
    let mut tokens = 0;
    let mut seen = vec![false; usize::try_from(wanted).unwrap_or(0)];
    let records = match AccuracyLog::open(&log) {
        Ok(records) => records,
        Err(error) => return say(ACCURACY_LOG, error.why),
    };
    for record in records {
        let record = match record {
            Ok(record) => record,
            Err(error) => return say(ACCURACY_LOG, format!("line {}: {}", error.line, error.why)),
        };
        let sample = record.qsl_idx;
        let slot = usize::try_from(sample).ok().and_then(|n| seen.get_mut(n));
        let what = match slot {
            None => format!("sample {sample}: the data set ends before it"),
            Some(true) => format!("sample {sample} has two answers"),
            Some(_) if record.data.is_empty() => format!("the answer to sample {sample} is empty"),
            Some(seen) => {
                *seen = true;
                tokens += record.data.len() / element(result.model);
                continue;
            }
        };
        return say(ACCURACY_SAMPLES, what);
    }
    if let Some(missing) = seen.iter().position(|seen| !seen) {
        let n = seen.iter().filter(|seen| !**seen).count();
        say(
            ACCURACY_SAMPLES,
            format!("{n} samples have no answer; the first is {missing}"),
        );
    }
    // Not every script prints the number of tokens, so count them here.
    let limits = result.model.accuracy_of(&result.place.scenario).iter();
    let mut limits = limits.filter(|a| a.metric == "TOKENS_PER_SAMPLE" && a.at_least == 0.0);
    if let Some(most) = limits.find_map(|a| a.most()) {
        let mean = tokens as f64 / seen.len().max(1) as f64;
        if mean > most {
            let what = format!("answers have {mean:.1} tokens, at most {most:.1}");
            say(ACCURACY_HIGH, what);
        }
    }
}

/// Bytes of an element of an answer.
fn element(model: &Model) -> usize {
    match &*model.dtype {
        "int64" => 8,
        "byte" => 1,
        _ => 4,
    }
}

/// Checks that a test's answers begin as the accuracy run's do: the verifier's criterion.
fn same(look: &mut Look<'_>, result: &Result<'_>, kind: &Kind, run: &Run, reference: &Run) {
    let begin = element(result.model);
    let read = |run: &Run| {
        let log = AccuracyLog::open(&run.folder.join(loadgen_log::ACCURACY))?;
        let first = |r: AccuracyRecord| (r.qsl_idx, r.data.into_iter().take(begin).collect());
        log.map(|record| record.map(first)).collect()
    };
    let read = |run: &Run| -> std::result::Result<BTreeMap<u64, Vec<u8>>, loadgen_log::LogError> {
        read(run)
    };
    let at = layout::run_folder(&result.folder, kind).join(loadgen_log::ACCURACY);
    let make = command(look, result, kind);
    match (read(run), read(reference)) {
        (Ok(test), Ok(answers)) => {
            let odd = test
                .iter()
                .find(|(sample, data)| answers.get(sample) != Some(data));
            if let Some((sample, _)) = odd {
                let what = format!("sample {sample} has another answer than in the accuracy run");
                look.say_make(TEST_ANSWERS, &at, what, make);
            } else if test.is_empty() {
                look.say_make(TEST_ANSWERS, &at, "it has no answer", make);
            }
        }
        (Err(error), _) => {
            let what = format!("line {}: {}", error.line, error.why);
            look.say_make(TEST_ANSWERS, &at, what, make);
        }
        // The check of the accuracy run reports this error.
        (_, Err(_)) => {}
    }
}
