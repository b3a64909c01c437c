//! Checks the accuracy run: its log, accuracy.txt, and the log's hash.

use super::*;
use crate::error;

pub(super) fn check(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, runs: &[CheckedRun]) {
    let folder = layout::run_folder(&result.folder, &RunKind::Accuracy);
    let run = runs.iter().find(|r| r.kind == RunKind::Accuracy);
    text(check, result, &folder, run);
    let log = folder.join(loadgen_log::ACCURACY);
    let make = command(check, result, &RunKind::Accuracy);
    match log.metadata() {
        Err(_) => check.say_make(ACCURACY_LOG, &log, "it is not there", make),
        Ok(of) if of.len() > check.round.accuracy_log_max_bytes => {
            let (bytes, most) = (of.len(), check.round.accuracy_log_max_bytes);
            let what = format!("{bytes} bytes, at most {most}: it is not cut");
            check.say_make(ACCURACY_LOG, &log, what, SCRIPTS);
        }
        Ok(_) => run.iter().for_each(|run| answers::kept(check, run, &log)),
    }
    for name in &result.model.accuracy_files {
        let path = folder.join(name);
        if !filled(&path) {
            check.say(ACCURACY_FILES, &path, "the round asks for this answer");
        }
    }
}

fn text(
    check: &mut TreeCheck<'_>,
    result: &CheckedResult<'_>,
    folder: &Path,
    run: Option<&CheckedRun>,
) {
    let path = folder.join("accuracy.txt");
    let script = script(check, result);
    let text = match error::read(&path) {
        Ok(text) if !text.trim().is_empty() => text,
        Ok(_) => return check.say_make(ACCURACY_TEXT, &path, "it is empty", script),
        Err(error) => return check.say_make(ACCURACY_TEXT, &path, error.to_string(), script),
    };
    for wanted in result.model.accuracy_of(&result.id.scenario) {
        let found: Vec<f64> = text.lines().filter_map(|line| wanted.find(line)).collect();
        if found.is_empty() && wanted.at_least > 0.0 {
            let what = format!("it has no {}", wanted.metric);
            check.say_make(ACCURACY_TEXT, &path, what, script.clone());
        }
        // The checker rejects every line with a value outside the limits.
        let (least, most) = (wanted.least(), wanted.most());
        if let Some(low) = found.iter().find(|found| **found < least) {
            let what = format!("{} is {low}, at least {least:.4}", wanted.metric);
            check.say(ACCURACY_LOW, &path, what);
        }
        let high = |found: &&f64| most.is_some_and(|most| **found > most);
        if let (Some(high), Some(most)) = (found.iter().find(high), most) {
            let what = format!("{} is {high}, at most {most:.4}", wanted.metric);
            check.say(ACCURACY_HIGH, &path, what);
        }
    }
    let hashes = text.lines().filter_map(|l| l.strip_prefix("hash="));
    let hashes: Vec<_> = hashes.collect();
    let [hash] = hashes[..] else {
        let what = format!("{} lines begin with hash=, not 1", hashes.len());
        return check.say_make(ACCURACY_HASH, &path, what, SCRIPTS);
    };
    // The tree's log is cut, so take the whole log's hash from the run's record.
    let whole = run.and_then(|r| r.manifest.as_ref()?.logs.get(loadgen_log::ACCURACY));
    if let Some(whole) = whole.filter(|whole| *whole != hash) {
        let what = format!("hash={hash}, the run's accuracy log has {whole}");
        check.say(ACCURACY_HASH, &path, what);
    }
}

/// The command that writes accuracy.txt.
fn script(check: &TreeCheck<'_>, result: &CheckedResult<'_>) -> String {
    let checker = check.checker.map(|path| path.display().to_string());
    let checker = checker.as_deref().unwrap_or("CHECKER");
    result.model.accuracy_command(checker, "RUN")
}
