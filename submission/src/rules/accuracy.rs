//! Checks the accuracy run: its log, accuracy.txt, and the log's hash.

use super::*;
use crate::error;

pub(super) fn check(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, run: &CheckedRun) {
    text(check, result, run);
    let log = run.logs.join(loadgen_log::ACCURACY);
    let (bytes, most) = (log.metadata(), check.round.accuracy_log_max_bytes);
    match bytes.map(|of| of.len()) {
        Err(_) => check.say(ACCURACY_LOG, &log, "it is not there"),
        Ok(bytes) if bytes > most => {
            let what = format!("{bytes} bytes, at most {most}: it is not cut");
            check.say(ACCURACY_LOG, &log, what);
        }
        Ok(_) => answers::kept(check, run, &log),
    }
    for name in &result.model.accuracy_files {
        check.has(ACCURACY_FILES, &run.logs.join(name));
    }
}

fn text(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, run: &CheckedRun) {
    let path = run.logs.join("accuracy.txt");
    let text = match error::read(&path) {
        Ok(text) if !text.trim().is_empty() => text,
        Ok(_) => return check.say(ACCURACY_TEXT, &path, "it is empty"),
        Err(error) => return check.say(ACCURACY_TEXT, &path, error.to_string()),
    };
    for wanted in result.model.accuracy_of(&result.id.scenario) {
        let found: Vec<f64> = text.lines().filter_map(|line| wanted.find(line)).collect();
        if found.is_empty() && wanted.at_least > 0.0 {
            let what = format!("it has no {}", wanted.metric);
            check.say(ACCURACY_TEXT, &path, what);
        }
        // The checker rejects every line with a value outside the limits.
        let (least, most) = (wanted.least(), wanted.most().unwrap_or(f64::INFINITY));
        if let Some(low) = found.iter().find(|found| **found < least) {
            let what = format!("{} is {low}, at least {least:.4}", wanted.metric);
            check.say(ACCURACY_LOW, &path, what);
        }
        if let Some(high) = found.iter().find(|found| **found > most) {
            let what = format!("{} is {high}, at most {most:.4}", wanted.metric);
            check.say(ACCURACY_HIGH, &path, what);
        }
    }
    let hashes = text.lines().filter_map(|l| l.strip_prefix("hash="));
    let hashes: Vec<_> = hashes.collect();
    let [hash] = hashes[..] else {
        let what = format!("{} lines begin with hash=, not 1", hashes.len());
        return check.say(ACCURACY_HASH, &path, what);
    };
    // The tree's log is cut, so take the whole log's hash from the run's record.
    let whole = run.hash_of(loadgen_log::ACCURACY);
    if let Some(whole) = whole.filter(|whole| *whole != hash) {
        let what = format!("hash={hash}, the run's accuracy log has {whole}");
        check.say(ACCURACY_HASH, &path, what);
    }
}
