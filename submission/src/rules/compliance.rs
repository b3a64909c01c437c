//! Checks the compliance tests of a model: files, verifiers' results, audit.config.

use super::*;
use crate::{error, manifest::AUDIT_CONFIG, round::AnswerRule};

/// Checks a result's tests, and returns their runs for the checks of every run.
pub(super) fn check(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>) -> Vec<CheckedRun> {
    let mut runs = Vec::new();
    for name in &result.model.tests {
        let Some(test) = check.round.tests.get(name) else {
            continue;
        };
        let folder = result.folder.join(name);
        let kind = RunKind::Test(name.clone());
        let make = command(check, result, &kind);
        if !folder.is_dir() {
            check.say_make(TEST_MISSING, &folder, format!("{name} has not run"), make);
            continue;
        }
        // Verifiers write these files; `read` reports missing logs of the run.
        let verify = "qdl submit ... --checker DIR";
        for file in test.files.iter().filter(|f| !filled(&folder.join(f))) {
            let what = "it is not there, or empty";
            check.say_make(TEST_FILES, &folder.join(file), what, verify);
        }
        for (file, lines) in &test.passes {
            let at = folder.join(file);
            let Ok(text) = error::read(&at) else { continue };
            for wanted in lines {
                if let Some(what) = refused(&text, wanted) {
                    check.say_make(TEST_PASS, &at, what, make.clone());
                }
            }
            if text.lines().any(|l| l.contains("TEST FAIL")) {
                check.say_make(TEST_PASS, &at, "it says TEST FAIL", make.clone());
            }
        }
        audit(check, result, name);
        let run = read(check, result, kind);
        let log = folder.join("accuracy").join(loadgen_log::ACCURACY);
        if filled(&log) {
            answers::kept(check, &run, &log);
        }
        if test.answers == Some(AnswerRule::Tokens) && filled(&log) {
            answers::tokens(check, result, &log);
        }
        runs.push(run);
    }
    runs
}

/// Why a text does not meet `wanted`, choices separated by `|`. A line must end in one of the
/// choices, and no line may give the same key another value.
fn refused(text: &str, wanted: &str) -> Option<String> {
    let choices: Vec<_> = wanted.split('|').collect();
    let good = |line: &&str| choices.iter().any(|one| line.trim_end().ends_with(one));
    let Some((head, _)) = wanted.split_once(": ") else {
        let said = text.lines().any(|line| good(&line));
        return (!said).then(|| format!("it does not say {wanted:?}"));
    };
    let mut lines = text.lines().filter(|line| line.contains(head)).peekable();
    if lines.peek().is_none() {
        return Some(format!("it does not say {wanted:?}"));
    }
    let bad = lines.find(|line| !good(line))?;
    Some(format!("it says {:?}, not {wanted:?}", bad.trim()))
}

/// Checks that the run's audit.config equals an official one of the test, byte for byte.
fn audit(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, test: &Name) {
    let kind = RunKind::Test(test.clone());
    let kept = check.tree.kept(result.id, &kind).join(AUDIT_CONFIG);
    let make = command(check, result, &kind);
    let Ok(ran) = std::fs::read(&kept) else {
        let what = "no audit.config is kept with the run";
        return check.say_make(TEST_AUDIT, &kept, what, make);
    };
    let Some(checker) = check.checker else { return };
    let official = manifest::audit_configs(checker, test);
    if official.is_empty() {
        let at = checker.join("compliance").join(test);
        let what = format!(
            "{} has no audit.config: is it an older checkout of mlcommons/inference?",
            at.display()
        );
        return check.say(TEST_AUDIT, &kept, what);
    }
    let is_run = |path: &PathBuf| std::fs::read(path).is_ok_and(|text| text == ran);
    if !official.iter().any(is_run) {
        let what = format!("it is not one of the official ones of {test}");
        check.say_make(TEST_AUDIT, &kept, what, make);
    }
}
