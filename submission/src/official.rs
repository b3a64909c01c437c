//! MLCommons' own scripts, from the checkout that the user names: the compliance tests' verifiers,
//! the truncation of accuracy logs, the submission checker.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    build::Built,
    error::{self, Error},
    layout::{self, Place},
    left::{AUDIT_CONFIG, FOLDER},
    round::{Round, Test, loadgen_scenario},
};

/// Where the scripts are, and what runs them.
#[derive(Clone, Debug)]
pub struct Official {
    checker: PathBuf,
    python: PathBuf,
}

/// What a script came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Which, in words.
    pub what: String,
    /// It returned 0.
    pub good: bool,
    /// Lines of its output that are errors or warnings, and the last one.
    pub lines: Vec<String>,
    /// It is the checker, whose complaints are held against what was found.
    pub is_checker: bool,
}

impl Official {
    /// Of a checkout of mlcommons/inference.
    ///
    /// # Errors
    /// It has no submission checker.
    pub fn new(checker: &Path, python: &Path) -> Result<Self, Error> {
        let absolute = checker.canonicalize().map_err(|source| Error::Read {
            path: checker.to_owned(),
            source,
        })?;
        let main = absolute.join("tools/submission/submission_checker/main.py");
        if !main.is_file() {
            return Err(Error::Usage(format!(
                "--checker {}: it has no {}; is it a checkout of mlcommons/inference?",
                checker.display(),
                main.strip_prefix(&absolute).unwrap_or(&main).display()
            )));
        }
        Ok(Official {
            checker: absolute,
            python: python.to_owned(),
        })
    }

    /// The checkout.
    pub fn folder(&self) -> &Path {
        &self.checker
    }

    /// Runs the verifier of each compliance run of a tree that was just built, before its accuracy
    /// logs are cut. `scripts` are TEST07's accuracy commands, by model.
    ///
    /// # Errors
    /// Python cannot be started, or a file cannot be written.
    pub fn verify(
        &self,
        round: &Round,
        built: &Built,
        scripts: &BTreeMap<String, String>,
    ) -> Result<Vec<Ran>, Error> {
        let mut ran = Vec::new();
        for (place, kinds) in &built.from {
            let Some(model) = round.models.get(&place.model) else {
                continue;
            };
            for name in &model.tests {
                let (Some(run), Some(test)) = (kinds.get(name), round.tests.get(name)) else {
                    continue;
                };
                let scenario = absolute(&built.tree.scenario(place))?;
                let with = Values {
                    run: absolute(run)?,
                    scenario,
                    place,
                    dtype: &model.dtype,
                    script: scripts.get(&place.model).map_or("", String::as_str),
                };
                ran.push(self.verify_one(name, test, &with)?);
            }
        }
        Ok(ran)
    }

    fn verify_one(&self, name: &str, test: &Test, with: &Values<'_>) -> Result<Ran, Error> {
        let script = self
            .checker
            .join("compliance")
            .join(name)
            .join("run_verification.py");
        // Verifiers write into the folder they are started in.
        let folder = with.scenario.join(name);
        std::fs::create_dir_all(&folder).map_err(|source| Error::Write {
            path: folder.clone(),
            source,
        })?;
        let work = std::env::temp_dir().join(format!("qdl-verify-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&work).map_err(|source| Error::Write {
            path: work.clone(),
            source,
        })?;
        let args: Vec<String> = test.args.iter().map(|arg| self.fill(arg, with)).collect();
        let mut command = self.script(&work);
        command.arg(&script).args(args);
        let (good, text) = self.output(command)?;
        let _ = std::fs::remove_dir_all(&work);
        if let Some(file) = &test.output {
            error::write(&folder.join(file), &text)?;
        }
        let what = format!("{name} of {} {}", with.place.model, with.place.scenario);
        Ok(Ran {
            what,
            good,
            lines: telling(&text),
            is_checker: false,
        })
    }

    fn fill(&self, arg: &str, with: &Values<'_>) -> String {
        let audit = with.run.join(FOLDER).join(AUDIT_CONFIG);
        let log = with.run.join(loadgen_log::ACCURACY);
        let values = [
            ("{run}", with.run.display().to_string()),
            ("{scenario}", with.scenario.display().to_string()),
            ("{checker}", self.checker.display().to_string()),
            ("{python}", self.python.display().to_string()),
            // Verifiers know LoadGen's own names and Interactive.
            ("{name}", with.place.scenario.clone()),
            (
                "{loadgen}",
                loadgen_scenario(&with.place.scenario).to_owned(),
            ),
            ("{log}", log.display().to_string()),
            ("{audit}", audit.display().to_string()),
            ("{dtype}", with.dtype.to_owned()),
            ("{accuracy_script}", with.script.to_owned()),
        ];
        values.iter().fold(arg.to_owned(), |arg, (name, value)| {
            arg.replace(name, value)
        })
    }

    /// Cuts the accuracy logs and writes their hashes. The whole logs stay in the runs' folders.
    ///
    /// # Errors
    /// Python cannot be started.
    pub fn truncate(&self, built: &Built) -> Result<Ran, Error> {
        let backup = std::env::temp_dir().join(format!("qdl-whole-logs-{}", std::process::id()));
        let mut command = self.script(&self.checker);
        command
            .arg(
                self.checker
                    .join("tools/submission/truncate_accuracy_log.py"),
            )
            .arg("--input")
            .arg(absolute(built.tree.root())?)
            .args(["--submitter", built.tree.submitter()])
            .arg("--backup")
            .arg(&backup);
        let (good, text) = self.output(command)?;
        let _ = std::fs::remove_dir_all(&backup);
        Ok(Ran {
            what: "truncation of accuracy logs".to_owned(),
            good,
            lines: telling(&text),
            is_checker: false,
        })
    }

    /// The submission checker's word on a tree.
    ///
    /// # Errors
    /// Python cannot be started.
    pub fn check(&self, round: &Round, tree: &layout::Tree) -> Result<Ran, Error> {
        let csv = std::env::temp_dir().join(format!("qdl-checker-{}.csv", std::process::id()));
        let mut command = self.script(&self.checker.join("tools/submission"));
        command
            .args(["-m", "submission_checker.main", "--input"])
            .arg(absolute(tree.root())?)
            .args([
                "--version",
                &round.checker_version,
                "--submitter",
                tree.submitter(),
            ])
            .arg("--csv")
            .arg(&csv);
        let (good, text) = self.output(command)?;
        for left in [csv.clone(), csv.with_extension("json")] {
            let _ = std::fs::remove_file(left);
        }
        let root = format!("{}/", absolute(tree.root())?.display());
        let lines = telling(&text)
            .into_iter()
            .map(|l| l.replace(&root, ""))
            .collect();
        Ok(Ran {
            what: format!(
                "the submission checker, --version {}",
                round.checker_version
            ),
            good,
            lines,
            is_checker: true,
        })
    }

    fn script(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.python);
        command
            .current_dir(folder)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null());
        command
    }

    fn output(&self, mut command: Command) -> Result<(bool, String), Error> {
        let output = command.output().map_err(|source| Error::Read {
            path: self.python.clone(),
            source,
        })?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text += &String::from_utf8_lossy(&output.stderr);
        Ok((output.status.success(), text))
    }
}

struct Values<'a> {
    run: PathBuf,
    scenario: PathBuf,
    place: &'a Place,
    dtype: &'a str,
    script: &'a str,
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}

/// What a person wants to see of a script's output: what is loud, each line once and without the
/// time and place that Python's logging puts before it, and the last line.
fn telling(text: &str) -> Vec<String> {
    let loud = |line: &&str| {
        ["ERROR", "WARNING", "Traceback", "TEST FAIL", "Error"]
            .iter()
            .any(|w| line.contains(w))
            && !["multiple messages with key", " skipped for "]
                .iter()
                .any(|w| line.contains(w))
    };
    let bare = |line: &str| {
        let message = line
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("] "));
        message.map_or(line, |(_, message)| message).to_owned()
    };
    let last = text.lines().rfind(|l| !l.trim().is_empty());
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines().filter(loud).chain(last).map(bare) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_loud_and_the_last_line_are_shown() {
        let text = "INFO:main:fine\nERROR:main:seed is wrong\nINFO:x\nSUMMARY: errors\n\n";
        assert_eq!(
            telling(text),
            ["ERROR:main:seed is wrong", "SUMMARY: errors"]
        );
        assert!(telling("").is_empty());
    }

    #[test]
    fn a_folder_that_is_no_checkout_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = Official::new(folder.path(), Path::new("python3")).expect_err("none");
        assert!(error.to_string().contains("mlcommons/inference"), "{error}");
    }
}
