//! Checks the accuracy run: its log, accuracy.txt, and the log's hash.

use super::*;
use crate::error;

/// Checks what only an accuracy run must meet.
pub(super) fn check(look: &mut Look<'_>, result: &Result<'_>, runs: &[Ran]) {
    let folder = layout::run_folder(&result.folder, &Kind::Accuracy);
    let ran = runs.iter().find(|r| r.run == Kind::Accuracy);
    text(look, result, &folder, ran);
    let log = folder.join(loadgen_log::ACCURACY);
    let make = command(look, result, &Kind::Accuracy);
    match log.metadata() {
        Err(_) => look.say_make(ACCURACY_LOG, &log, "it is not there", make.clone()),
        Ok(of) if of.len() > look.round.accuracy_log_max_bytes => {
            let what = format!(
                "{} bytes, at most {}: it is not cut",
                of.len(),
                look.round.accuracy_log_max_bytes
            );
            let make = "qdl submit ... --checker DIR";
            look.say_make(ACCURACY_LOG, &log, what, make);
        }
        Ok(_) => ran.iter().for_each(|ran| answers::kept(look, ran, &log)),
    }
    if let Some(detail) = ran.and_then(|r| r.detail.as_ref()) {
        let wanted = result.model.accuracy_samples(&result.place.scenario);
        let found = detail.whole("effective_accuracy_sample_count");
        let found = found.or_else(|| detail.whole("qsl_reported_total_count"));
        if found != Some(wanted) {
            let found = found.unwrap_or(0);
            let what = format!("{found} samples, the data set has {wanted}");
            look.say_make(
                ACCURACY_SAMPLES,
                &folder.join(loadgen_log::DETAIL),
                what,
                make,
            );
        }
    }
    for name in &result.model.accuracy_files {
        let path = folder.join(name);
        if !filled(&path) {
            look.say(ACCURACY_FILES, &path, "the round asks for this answer");
        }
    }
}

fn text(look: &mut Look<'_>, result: &Result<'_>, folder: &Path, ran: Option<&Ran>) {
    let path = folder.join("accuracy.txt");
    let script = script(look, result);
    let text = match error::read(&path) {
        Ok(text) if !text.trim().is_empty() => text,
        Ok(_) => return look.say_make(ACCURACY_TEXT, &path, "it is empty", script),
        Err(error) => return look.say_make(ACCURACY_TEXT, &path, error.to_string(), script),
    };
    for wanted in result.model.accuracy_of(&result.place.scenario) {
        let found: Vec<f64> = text.lines().filter_map(|line| wanted.find(line)).collect();
        if found.is_empty() && wanted.at_least > 0.0 {
            let what = format!("it has no {}", wanted.metric);
            look.say_make(ACCURACY_TEXT, &path, what, script.clone());
        }
        // The checker rejects every line with a value outside the limits.
        let (least, most) = (wanted.least(), wanted.most());
        if let Some(low) = found.iter().find(|found| **found < least) {
            let what = format!("{} is {low}, at least {least:.4}", wanted.metric);
            look.say(ACCURACY_LOW, &path, what);
        }
        let high = |found: &&f64| most.is_some_and(|most| **found > most);
        if let (Some(high), Some(most)) = (found.iter().find(high), most) {
            let what = format!("{} is {high}, at most {most:.4}", wanted.metric);
            look.say(ACCURACY_HIGH, &path, what);
        }
    }
    let hashes: Vec<_> = text
        .lines()
        .filter_map(|l| l.strip_prefix("hash="))
        .collect();
    let make = "qdl submit ... --checker DIR";
    let [hash] = hashes[..] else {
        let n = hashes.len();
        return look.say_make(
            ACCURACY_HASH,
            &path,
            format!("{n} lines begin with hash=, not 1"),
            make,
        );
    };
    // The tree has the log cut, so take the whole log's hash from the run's record.
    let whole = ran.and_then(|r| r.left.as_ref()?.logs.get(loadgen_log::ACCURACY));
    if let Some(whole) = whole.filter(|whole| *whole != hash) {
        let what = format!("hash={hash}, the run's accuracy log has {whole}");
        look.say(ACCURACY_HASH, &path, what);
    }
}

/// The command that writes accuracy.txt.
fn script(look: &Look<'_>, result: &Result<'_>) -> String {
    let checker = look.checker.map(|path| path.display().to_string());
    let checker = checker.as_deref().unwrap_or("CHECKER");
    result.model.accuracy_command(checker, "RUN")
}
