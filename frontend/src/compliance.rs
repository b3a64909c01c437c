//! What a submission needs of a frontend. `--compliance TEST06` finds the official `audit.config`
//! of a compliance test in the user's checkout of mlcommons/inference, fetches nothing, and reads
//! the file in place.

pub mod describe;
pub mod guard;
pub mod left;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::settings::cli::Args;

/// Name of a compliance test's file: one for all models, or one in the folder of each model.
const FILE: &str = "audit.config";

fn list(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!(" (it has {})", names.join(", ")),
    }
}

/// Returns the `audit.config` that `--compliance` selects; `None` without the flag. `models` are
/// the names of the configured model.
pub fn audit_config(args: &Args, models: &[&str]) -> Result<Option<PathBuf>> {
    let Some(test) = args.compliance.as_deref() else {
        return Ok(None);
    };
    let Some(checker) = args.checker.as_deref() else {
        bail!(
            "--compliance {test} needs the official {FILE}, which is not part of this project: \
             name a checkout of mlcommons/inference with --checker DIR (or QDL_MLPERF_CHECKOUT), \
             or the file with --audit-config"
        );
    };
    find(checker, &test.to_uppercase(), models).map(Some)
}

fn find(checker: &Path, test: &str, models: &[&str]) -> Result<PathBuf> {
    let tests = checker.join("compliance");
    let folder = tests.join(test);
    if !folder.is_dir() {
        let has = below(&tests, "run_verification.py");
        bail!(
            "--compliance {test}: {} has no such test{}; is it a checkout of mlcommons/inference \
             of the round?",
            tests.display(),
            list(&has)
        );
    }
    let for_all = folder.join(FILE);
    if for_all.is_file() {
        return Ok(for_all);
    }
    let has = below(&folder, FILE);
    let own = models
        .iter()
        .flat_map(|model| spellings(model))
        .find(|model| has.contains(model));
    match own {
        Some(model) => Ok(folder.join(model).join(FILE)),
        None => bail!(
            "--compliance {test}: {} has no {FILE} for the model {}{}; name the right one with \
             --audit-config",
            folder.display(),
            models.first().copied().unwrap_or_default(),
            list(&has)
        ),
    }
}

/// Possible folder names of a model. LoadGen's names have no dots and contain the scenario; a
/// submission's names contain the accuracy.
fn spellings(model: &str) -> [String; 3] {
    let bare = ["-interactive", "-99.9", "-99"]
        .iter()
        .find_map(|end| model.strip_suffix(end))
        .unwrap_or(model);
    [model.to_owned(), bare.to_owned(), bare.replace('_', ".")]
}
/// Names of the folders in `folder` that hold `file`.
fn below(folder: &Path, file: &str) -> Vec<String> {
    let mut names = disk::folders(folder);
    names.retain(|name| folder.join(name).join(file).is_file());
    names
}

#[cfg(test)]
mod tests {
    use std::fs;

    use qdl::testkit::assert_has;

    use super::*;

    fn checkout() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for folder in [
            "TEST06",
            "TEST01/whisper",
            "TEST01/3d-unet",
            "TEST09/gpt-oss-120b",
        ] {
            let folder = root.path().join("compliance").join(folder);
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join(FILE), "*.*.mode = 2\n").expect("written");
        }
        let script = root.path().join("compliance/TEST06/run_verification.py");
        fs::write(script, "").expect("written");
        root
    }

    #[test]
    fn a_tests_own_file_is_found_or_the_models() {
        let root = checkout();
        let found = |test: &str, models: &[&str]| {
            let path = find(root.path(), test, models).expect("it is there");
            let path = path
                .strip_prefix(root.path().join("compliance"))
                .expect("below");
            path.to_string_lossy().into_owned()
        };
        assert_eq!(found("TEST06", &["anything"]), "TEST06/audit.config");
        assert_eq!(found("TEST01", &["whisper"]), "TEST01/whisper/audit.config");
        for names in [
            ["3d-unet-99.9", "3d-unet"],
            ["3d-unet-99", ""],
            ["my-unet", "3d-unet"],
        ] {
            assert_eq!(found("TEST01", &names), "TEST01/3d-unet/audit.config");
        }
        let interactive = ["gpt-oss-120b-interactive"];
        assert_eq!(
            found("TEST09", &interactive),
            "TEST09/gpt-oss-120b/audit.config"
        );
    }

    #[test]
    fn what_is_not_there_is_named_with_what_is() {
        let root = checkout();
        let error = |test: &str| {
            let error = find(root.path(), test, &["digits"]).expect_err("it is not there");
            error.to_string()
        };
        let no_test = error("TEST02");
        assert_has(&no_test, &["no such test (it has TEST06)"]);
        let no_model = error("TEST01");
        assert_has(
            &no_model,
            &["for the model digits (it has 3d-unet, whisper)"],
        );
    }
}
