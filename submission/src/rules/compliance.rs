//! Checks the compliance tests of a model: files, verifiers' results, audit.config.

use super::*;
use crate::{error, left::AUDIT_CONFIG, round::Answers};

/// Checks a result's tests, and returns their runs for the checks of every run.
pub(super) fn check(look: &mut Look<'_>, result: &Result<'_>) -> Vec<Ran> {
    let mut runs = Vec::new();
    for name in &result.model.tests {
        let Some(test) = look.round.tests.get(name) else {
            continue;
        };
        let folder = result.folder.join(name);
        let kind = Kind::Test(name.clone());
        let make = command(look, result, &kind);
        if !folder.is_dir() {
            look.say_make(TEST_MISSING, &folder, format!("{name} has not run"), make);
            continue;
        }
        // Verifiers write these files; `read` reports missing logs of the run.
        let verify = "qdl submit ... --checker DIR";
        for file in test.files.iter().filter(|f| !filled(&folder.join(f))) {
            look.say_make(
                TEST_FILES,
                &folder.join(file),
                "it is not there, or empty",
                verify,
            );
        }
        for (file, lines) in &test.passes {
            let at = folder.join(file);
            let Ok(text) = error::read(&at) else { continue };
            for wanted in lines {
                if let Some(what) = refused(&text, wanted) {
                    look.say_make(TEST_PASS, &at, what, make.clone());
                }
            }
            if text.lines().any(|l| l.contains("TEST FAIL")) {
                look.say_make(TEST_PASS, &at, "it says TEST FAIL", make.clone());
            }
        }
        audit(look, result, name);
        let ran = read(look, result, kind);
        let log = folder.join("accuracy").join(loadgen_log::ACCURACY);
        if filled(&log) {
            answers::kept(look, &ran, &log);
        }
        if test.answers == Some(Answers::Tokens) && filled(&log) {
            answers::tokens(look, result, &log);
        }
        runs.push(ran);
    }
    runs
}

/// Why a text does not meet `wanted`. Some line must end in one of the choices, and no line may
/// give the same key another value.
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
fn audit(look: &mut Look<'_>, result: &Result<'_>, test: &Name) {
    let kind = Kind::Test(test.clone());
    let kept = look.tree.kept(result.place, &kind).join(AUDIT_CONFIG);
    let make = command(look, result, &kind);
    let Ok(ran) = std::fs::read(&kept) else {
        look.say_make(
            TEST_AUDIT,
            &kept,
            "no audit.config is kept with the run",
            make,
        );
        return;
    };
    let Some(checker) = look.checker else { return };
    let official = left::audit_configs(checker, test);
    if official.is_empty() {
        let at = checker.join("compliance").join(test);
        let what = format!(
            "{} has no audit.config: is it an older checkout of mlcommons/inference?",
            at.display()
        );
        look.say(TEST_AUDIT, &kept, what);
        return;
    }
    if !official
        .iter()
        .any(|path| std::fs::read(path).is_ok_and(|o| o == ran))
    {
        look.say_make(
            TEST_AUDIT,
            &kept,
            format!("it is not one of the official ones of {test}"),
            make,
        );
    }
}
