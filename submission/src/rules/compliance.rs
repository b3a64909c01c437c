//! Checks the compliance tests of a model: files, verifiers' results, audit.config.

use super::*;
use crate::{
    layout::Below,
    manifest::AUDIT_CONFIG,
    round::{AccuracyFigure, ComplianceTest},
};

/// Checks a result's tests, and returns their runs for the checks of every run.
pub(super) fn check(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>) -> Vec<CheckedRun> {
    let mut runs = Vec::new();
    for name in &result.model.tests {
        let Some(test) = check.round.tests.get(name) else {
            continue;
        };
        let folder = result.folder.join(name);
        if !folder.is_dir() {
            check.say(TEST_MISSING, &folder, format!("{name} has not run"));
            continue;
        }
        // Verifiers write these files; `read` reports missing logs of the run.
        for file in &test.files {
            check.has(TEST_FILES, &folder.join(file));
        }
        let figures = result.model.accuracy_of(&result.id.scenario);
        for (file, what) in failures(test, figures, &folder) {
            check.say(TEST_PASS, &folder.join(file), what);
        }
        let run = check.read(result, RunKind::Test(name.clone()));
        audit(check, &run, name);
        let log = folder.join("accuracy").join(loadgen_log::ACCURACY);
        if filled(&log) {
            answers::kept(check, &run, &log);
            if let Some(eos) = test.eos {
                answers::tokens(check, result, &log, eos);
            }
        }
        runs.push(run);
    }
    runs
}

/// Why the files of a verifier in a test's folder do not say that the test passed, by file. Skips
/// missing files.
pub(crate) fn failures<'a>(
    test: &'a ComplianceTest,
    figures: &[AccuracyFigure],
    folder: &Path,
) -> Vec<(&'a Below, String)> {
    let mut found = Vec::new();
    for (file, lines) in &test.passes {
        let Ok(text) = error::read(&folder.join(file)) else {
            continue;
        };
        let mut failed: Vec<_> = lines
            .iter()
            .filter_map(|wanted| refused(&text, wanted))
            .collect();
        if text.lines().any(|l| l.contains("TEST FAIL")) {
            failed.push("it says TEST FAIL".to_owned());
        }
        // Answers may differ if the figures over them do not.
        if !failed.is_empty()
            && test
                .baseline
                .as_ref()
                .is_some_and(|b| b.instead_of == *file)
        {
            failed = match apart(test, figures, folder) {
                Some(apart) => apart,
                None => failed,
            };
        }
        found.extend(failed.into_iter().map(|what| (file, what)));
    }
    found
}

/// The figures that are further apart over a test's answers than over the accuracy run's answers to
/// the same samples; `None` if the test has no such figures.
fn apart(test: &ComplianceTest, figures: &[AccuracyFigure], folder: &Path) -> Option<Vec<String>> {
    let files = &test.baseline.as_ref()?.files;
    let texts = files
        .iter()
        .map(|file| error::read(&folder.join(file)).ok());
    let [baseline, own] = &texts.collect::<Option<Vec<_>>>()?[..] else {
        return None;
    };
    let judge = |figure: &AccuracyFigure| {
        let last = |text: &String| {
            text.lines()
                .filter_map(|line| figure.find(line))
                .next_back()
        };
        let share = 1.0 - figure.at_least;
        let (Some(baseline), Some(own)) = (last(baseline), last(own)) else {
            return Some(format!("{} is not in both accuracy files", figure.metric));
        };
        let is_near = (1.0 - baseline / own).abs() <= share + 1e-9;
        (!is_near).then(|| {
            let percent = share * 100.0;
            let metric = &figure.metric;
            format!("{metric} is {own}, the baseline's {baseline}: at most {percent:.1} % apart")
        })
    };
    let asked = figures.iter().filter(|figure| figure.at_least > 0.0);
    Some(asked.filter_map(judge).collect())
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
fn audit(check: &mut TreeCheck<'_>, run: &CheckedRun, test: &Name) {
    let kept = run.kept.join(AUDIT_CONFIG);
    let Ok(ran) = error::bytes(&kept) else {
        return check.say(TEST_AUDIT, &kept, "no audit.config is kept with the run");
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
    let is_run = |path: &PathBuf| error::bytes(path).is_ok_and(|text| text == ran);
    if !official.iter().any(is_run) {
        let official = official
            .iter()
            .filter_map(|path| manifest::sha256_of_file(path).ok());
        let what = format!("it is not one of the official ones of {test}");
        let mut altered = official.map(|sha256| altered(&kept, &sha256, &what));
        let what = altered.find(|one| *one != what).unwrap_or(what.clone());
        check.say(TEST_AUDIT, &kept, what);
    }
}
