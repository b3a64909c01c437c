//! Runs MLCommons' scripts from the user's checkout: compliance verifiers, truncation of accuracy
//! logs, and the submission checker.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    build::{BuiltTree, quoted},
    error::{self, Error},
    layout::{self, Name, ResultId, RunKind},
    manifest::AUDIT_CONFIG,
    round::{ComplianceTest, Model, Round},
    rules,
};

/// A checkout of mlcommons/inference and the Python that runs its scripts.
#[derive(Clone, Debug)]
pub struct Official {
    pub checker: PathBuf,
    python: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptResult {
    /// The script and what it ran on, in words.
    pub what: String,
    pub good: bool,
    /// Errors and warnings in the script's output, and its last line.
    pub lines: Vec<String>,
    /// Whether the script is the submission checker.
    pub is_checker: bool,
}

impl ScriptResult {
    fn new(what: String, good: bool, text: &str) -> Self {
        ScriptResult {
            what,
            good,
            lines: telling(text),
            is_checker: false,
        }
    }

    fn fail(&mut self, why: String) {
        self.good = false;
        self.lines.push(why);
    }
}

impl Official {
    pub fn new(checker: &Path, python: &Path, round: &Round) -> Result<Self, Error> {
        let folder = checker.canonicalize().map_err(Error::read(checker))?;
        let tools = folder.join("tools/submission/submission_checker");
        let usage = |what: String| Error(format!("--checker {}: {what}", checker.display()));
        if !tools.join("main.py").is_file() {
            let what = "it has no tools/submission/submission_checker/main.py; is it a checkout \
                        of mlcommons/inference?";
            return Err(usage(what.to_owned()));
        }
        let known = error::read(&tools.join("constants.py"))?;
        let models = round.models.keys().map(|m| &**m);
        let mut names = std::iter::once(&*round.checker_version).chain(models);
        let source = round.sources.get("checker").map_or("", String::as_str);
        if let Some(odd) = names.find(|name| !known.contains(&format!("\"{name}\""))) {
            return Err(usage(format!(
                "its submission checker does not know {odd}: the checkout is older than the one of \
                 round {} ({source}); update it",
                round.round
            )));
        }
        // The system searches PATH for a bare name. A path stays as given: links are not resolved.
        let python = match python.components().count() {
            1 => python.to_owned(),
            _ => absolute(python)?,
        };
        let official = Official {
            checker: folder,
            python,
        };
        let mut command = official.script(&official.checker);
        command.args(["-c", "import numpy, yaml"]);
        match official.output(command)? {
            (true, _) => Ok(official),
            (false, text) => {
                let python = official.python.display();
                let last = text.lines().last().unwrap_or_default();
                Err(Error(format!(
                    "--python {python}: MLCommons' scripts want numpy and PyYAML: {last}; name a \
                     Python that has them"
                )))
            }
        }
    }

    /// Runs the verifier of each compliance run of a newly built tree: before
    /// [`Official::truncate`] cuts the logs. `scripts` holds TEST07's accuracy command per model.
    pub fn verify(
        &self,
        round: &Round,
        built: &BuiltTree,
        scripts: &BTreeMap<String, String>,
    ) -> Result<Vec<ScriptResult>, Error> {
        let mut ran = Vec::new();
        let runs = built.from.iter();
        for (place, (kind, run)) in runs.flat_map(|(id, kinds)| kinds.iter().map(move |k| (id, k)))
        {
            let model = round.models.get(&place.model);
            let (RunKind::Test(name), Some(model)) = (kind, model) else {
                continue;
            };
            let with = ScriptValues {
                run: absolute(run)?,
                scenario: absolute(&built.tree.scenario(place))?,
                place,
                model,
                dtype: &model.dtype,
                script: scripts.get(&*place.model).map_or("", String::as_str),
            };
            ran.push(self.verify_one(name, &round.tests[name], &with)?);
        }
        Ok(ran)
    }

    fn verify_one(
        &self,
        name: &Name,
        test: &ComplianceTest,
        with: &ScriptValues<'_>,
    ) -> Result<ScriptResult, Error> {
        // Verifiers write into their working directory.
        let folder = with.scenario.join(name);
        std::fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
        let work = std::env::temp_dir().join(format!("qdl-verify-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&work).map_err(Error::write(&work))?;
        // Verifiers put paths into a shell's command without quotes.
        let plain = |name: &str, path: &Path| match path.to_str().is_some_and(is_plain) {
            true => Ok(path.to_owned()),
            false => {
                let link = work.join(name);
                let linked = std::os::unix::fs::symlink(path, &link);
                linked.map_err(Error::write(&link)).map(|()| link)
            }
        };
        let paths = ScriptValues {
            run: plain("run", &with.run)?,
            scenario: plain("scenario", &with.scenario)?,
            ..*with
        };
        let official = Official {
            checker: plain("checker", &self.checker)?,
            python: self.python.clone(),
        };
        let script = official.checker.join("compliance").join(name);
        let script = script.join("run_verification.py");
        let args = test.args.iter().map(|arg| official.fill(arg, &paths));
        let mut command = official.script(&work);
        command.arg(&script).args(args);
        let ran = self.output(command);
        let _ = std::fs::remove_dir_all(&work);
        let (good, text) = ran?;
        if let Some(file) = &test.output {
            error::write(&folder.join(file), &text)?;
        }
        let what = format!("{name} of {} {}", with.place.model, with.place.scenario);
        let mut result = ScriptResult::new(what, good, &text);
        // The exit code is 0 also after a failed test.
        let figures = with.model.accuracy_of(&with.place.scenario);
        for (file, what) in rules::failures(test, figures, &folder) {
            result.fail(format!("{}: {what}", file.as_ref().display()));
        }
        for file in test
            .passes
            .keys()
            .filter(|file| !folder.join(file).is_file())
        {
            result.fail(format!("{}: it was not written", file.as_ref().display()));
        }
        Ok(result)
    }

    fn fill(&self, arg: &str, with: &ScriptValues<'_>) -> String {
        let audit = with.run.join(record::COPIES).join(AUDIT_CONFIG);
        let log = with.run.join(loadgen_log::ACCURACY);
        let values = [
            ("{run}", with.run.display().to_string()),
            ("{scenario}", with.scenario.display().to_string()),
            ("{checker}", self.checker.display().to_string()),
            ("{python}", self.python.display().to_string()),
            // Verifiers accept LoadGen's scenario names and Interactive.
            ("{name}", with.place.scenario.to_string()),
            ("{log}", log.display().to_string()),
            ("{audit}", audit.display().to_string()),
            ("{dtype}", with.dtype.to_owned()),
            ("{accuracy_script}", with.script.to_owned()),
        ];
        values.iter().fold(arg.to_owned(), |arg, (name, value)| {
            arg.replace(name, value)
        })
    }

    /// Cuts the accuracy logs of the tree and writes their hashes. Run folders keep whole logs.
    pub fn truncate(&self, built: &BuiltTree) -> Result<ScriptResult, Error> {
        // The script writes a log's hash into accuracy.txt and skips a log without that file.
        for (place, kinds) in &built.from {
            for kind in kinds.keys().filter(|kind| matches!(kind, RunKind::Test(_))) {
                let folder = built.tree.scenario(place).join(kind.name());
                let folder = folder.join("accuracy");
                let text = folder.join("accuracy.txt");
                if folder.join(loadgen_log::ACCURACY).is_file() && !text.exists() {
                    error::write(&text, "The answers of this run: ../verify_*.txt\n")?;
                }
            }
        }
        let backup = std::env::temp_dir().join(format!("qdl-whole-logs-{}", std::process::id()));
        let script = "tools/submission/truncate_accuracy_log.py";
        let script = self.checker.join(script);
        let mut command = self.script(&self.checker);
        command
            .arg(script)
            .arg("--input")
            .arg(absolute(&built.tree.root)?)
            .args(["--submitter", &built.tree.submitter])
            .arg("--backup")
            .arg(&backup);
        let (good, text) = self.output(command)?;
        let _ = std::fs::remove_dir_all(&backup);
        // The script returns 0 on errors too.
        let good = good && !text.contains("ERROR");
        let what = "truncation of accuracy logs".to_owned();
        Ok(ScriptResult::new(what, good, &text))
    }

    pub fn check(&self, round: &Round, tree: &layout::Tree) -> Result<ScriptResult, Error> {
        let version = round.checker_version.as_str();
        let csv = std::env::temp_dir().join(format!("qdl-checker-{}.csv", std::process::id()));
        let mut command = self.script(&self.checker.join("tools/submission"));
        command
            .args(["-m", "submission_checker.main", "--input"])
            .arg(absolute(&tree.root)?)
            .args(["--version", version, "--submitter", &tree.submitter])
            .arg("--csv")
            .arg(&csv);
        let (good, text) = self.output(command)?;
        for file in [csv.clone(), csv.with_extension("json")] {
            let _ = std::fs::remove_file(file);
        }
        let root = format!("{}/", absolute(&tree.root)?.display());
        let what = format!("the submission checker, --version {version}");
        let good = good && text.contains("submission looks OK");
        Ok(ScriptResult {
            is_checker: true,
            ..ScriptResult::new(what, good, &text.replace(&root, ""))
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
        let output = command.output().map_err(Error::read(&self.python))?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text += &String::from_utf8_lossy(&output.stderr);
        Ok((output.status.success(), text))
    }
}

struct ScriptValues<'a> {
    run: PathBuf,
    scenario: PathBuf,
    place: &'a ResultId,
    model: &'a Model,
    dtype: &'a str,
    script: &'a str,
}

/// Whether a shell takes the path as one word.
fn is_plain(path: &str) -> bool {
    quoted(path) == path
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(Error::read(path))
}

/// The lines of a script's output that a user needs: errors, warnings, and the last line. Each line
/// appears once, without the prefix of Python's logging.
fn telling(text: &str) -> Vec<String> {
    let loud = |line: &&str| {
        let loud = ["ERROR", "WARNING", "Traceback", "TEST FAIL", "Error"];
        let known = ["multiple messages with key", " skipped for "];
        loud.iter().any(|w| line.contains(w)) && !known.iter().any(|w| line.contains(w))
    };
    let bare = |line: &str| {
        let message = line.strip_prefix('[');
        let message = message.and_then(|rest| rest.split_once("] "));
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
    use std::os::unix::fs::{PermissionsExt, symlink};

    use qdl::testkit::assert_has;

    use super::*;
    use crate::{
        layout::{Division, Tree},
        round::newest,
    };

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    /// A folder with these files, and `python3` for its scripts.
    fn checkout(files: &[(&str, &str)]) -> (tempfile::TempDir, Official) {
        let place = tempfile::tempdir().expect("a folder");
        for (file, text) in files {
            error::write(&place.path().join(file), text).expect("written");
        }
        let official = Official {
            checker: place.path().to_owned(),
            python: "python3".into(),
        };
        (place, official)
    }

    #[test]
    fn what_is_loud_and_the_last_line_are_shown() {
        let text = "INFO:main:fine\nERROR:main:seed is wrong\nINFO:x\nSUMMARY: errors\n\n";
        let expected = ["ERROR:main:seed is wrong", "SUMMARY: errors"];
        assert_eq!(telling(text), expected);
        assert!(telling("").is_empty());
    }

    #[test]
    fn a_checkout_and_a_python_say_what_they_lack() {
        let round = Round::find(newest()).expect("built in");
        let (place, _) = checkout(&[]);
        let tools = place.path().join("tools/submission/submission_checker");
        // A virtual environment's Python is a link to a program that reads its own name.
        let (program, link) = (place.path().join("program"), place.path().join("python"));
        error::write(&program, "#!/bin/sh\necho \"no module in $0\"; exit 1\n").expect("written");
        let mode = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("a program");
        symlink(&program, &link).expect("a link");
        let version = format!("\"{}\"", round.checker_version);
        let names = round
            .models
            .keys()
            .map(|model| format!("{version} \"{model}\""));
        let names: String = names.collect();
        let lacks_numpy = format!("no module in {}", link.display());
        for (file, text, says) in [
            ("x", "", "is it a checkout of mlcommons/inference"),
            ("main.py", "", "constants.py"),
            ("constants.py", &*version, "older than the one of round"),
            ("constants.py", &names, &lacks_numpy),
        ] {
            error::write(&tools.join(file), text).expect("written");
            let error = Official::new(place.path(), &link, &round).expect_err(says);
            assert_has(&error.to_string(), &[says]);
        }
    }

    #[test]
    fn a_test_has_passed_if_its_verifier_says_so_whatever_its_exit_code_and_its_paths() {
        let round = Round::find(newest()).expect("built in");
        // As the official one: the path of the run goes into a shell's command without quotes.
        let script = "import os, sys\nrun, out = sys.argv[2], sys.argv[4]\n\
            os.system(f'cat {run}/word > {out}/TEST06/verify_accuracy.txt')\n";
        let script = ("a checkout/compliance/TEST06/run_verification.py", script);
        let lines = "First token check pass: Skipped\nEOS check pass: True\n\
                     Sample length check pass: True\nTEST06 verification complete\n";
        let bad = lines.replace("EOS check pass: True", "EOS check pass: False");
        for (run, word, is_good) in [("the run", lines, true), ("another run", &bad, false)] {
            let (place, mut official) = checkout(&[script, (&format!("{run}/word"), word)]);
            official.checker = place.path().join("a checkout");
            let id = ResultId {
                system: name("sys"),
                model: name("llama3.1-8b"),
                scenario: name("Offline"),
            };
            let run = (RunKind::Test(name("TEST06")), place.path().join(run));
            let root = place.path().join("a tree");
            let built = BuiltTree {
                tree: Tree::new(&root, Division::Network, &name("Soci\u{e9}t\u{e9}")),
                from: BTreeMap::from([(id, BTreeMap::from([run]))]),
            };
            let ran = official.verify(&round, &built, &BTreeMap::new());
            let ran = ran.expect("it ran").swap_remove(0);
            assert_eq!(ran.good, is_good, "{ran:?}");
            let says = "verify_accuracy.txt: it says \"EOS check pass: False\"";
            assert_eq!(
                ran.lines.iter().any(|line| line.starts_with(says)),
                !is_good,
                "{ran:?}"
            );
        }
    }

    #[test]
    fn a_truncation_that_logs_an_error_has_not_passed() {
        let script = "tools/submission/truncate_accuracy_log.py";
        let text = "print('ERROR:main:accuracy.txt missing')\n";
        let (place, official) = checkout(&[(script, text)]);
        let built = BuiltTree {
            tree: Tree::new(place.path(), Division::Network, &name("org")),
            from: BTreeMap::new(),
        };
        let ran = official.truncate(&built).expect("it ran");
        assert!(!ran.good, "{ran:?}");
        assert_eq!(ran.lines, ["ERROR:main:accuracy.txt missing"]);
    }
}
