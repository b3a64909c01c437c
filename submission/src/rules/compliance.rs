//! The compliance tests of a model: their files, what their verifiers said, their audit.config.

use super::*;
use crate::{error, left::AUDIT_CONFIG};

/// Checks a result's tests; their runs, for the checks that hold for every run.
pub(super) fn check(look: &mut Look<'_>, result: &Result<'_>) -> Vec<Ran> {
    let mut runs = Vec::new();
    for name in &result.model.tests {
        let Some(test) = look.round.tests.get(name) else {
            continue;
        };
        let folder = result.folder.join(name);
        let make = command(look, result, name);
        if !folder.is_dir() {
            look.say_make(TEST_MISSING, &folder, format!("{name} has not run"), make);
            continue;
        }
        for file in test.files.iter().filter(|f| !filled(&folder.join(f))) {
            let at = folder.join(file);
            look.say_make(TEST_FILES, &at, "it is not there, or empty", make.clone());
        }
        for (file, lines) in &test.passes {
            let at = folder.join(file);
            let Ok(text) = error::read(&at) else { continue };
            for wanted in lines {
                let mut any = wanted.split('|');
                if !any.any(|one| text.lines().any(|line| line.trim_end().ends_with(one))) {
                    look.say_make(
                        TEST_PASS,
                        &at,
                        format!("it does not say {wanted:?}"),
                        make.clone(),
                    );
                }
            }
            if text
                .lines()
                .any(|l| l.trim_start().starts_with("TEST FAIL"))
            {
                look.say_make(TEST_PASS, &at, "it says TEST FAIL", make.clone());
            }
        }
        audit(look, result, name);
        runs.push(read(look, result, name));
    }
    runs
}

/// The audit.config that ran is byte for byte one of the test's own.
fn audit(look: &mut Look<'_>, result: &Result<'_>, test: &str) {
    let kept = look.tree.kept(result.place, test).join(AUDIT_CONFIG);
    let make = command(look, result, test);
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
    let official = audit_configs(checker, test);
    if official.is_empty() {
        let at = checker.join("compliance").join(test);
        let what = format!(
            "{} has no audit.config: is it a checkout of mlcommons/inference?",
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

/// The official audit.config files of a test: its own, and those of single models.
pub fn audit_configs(checker: &Path, test: &str) -> Vec<std::path::PathBuf> {
    let folder = checker.join("compliance").join(test);
    let own = folder.join(AUDIT_CONFIG);
    let models = layout::folders(&folder);
    let models = models.iter().map(|m| folder.join(m).join(AUDIT_CONFIG));
    std::iter::once(own)
        .chain(models)
        .filter(|p| p.is_file())
        .collect()
}
