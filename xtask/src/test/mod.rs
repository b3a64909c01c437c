//! `cargo xtask test`: every check this repository has, a table of them, and one line of counts.
//!
//! A step that fails does not keep the next one from running: one run tells all there is to tell. No test at all
//! counts as a failure, so that a wrong filter or an empty build cannot look like success.

mod counts;
mod sanitize;

use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use self::counts::Counts;
pub use self::sanitize::Sanitizer;
use crate::process::{cargo, on_path, run_copying};
use crate::setup::{self, Models};
use crate::soft_roce;

/// No step takes longer, builds included, on any machine worth waiting for.
const DEADLINE: Duration = Duration::from_secs(3600);

/// How a step ended.
enum Outcome {
    Passed,
    Failed,
    /// Not run, with the reason.
    Left(String),
}

/// A line of the table.
struct Row {
    step: &'static str,
    outcome: Outcome,
    counts: Option<Counts>,
    took: Duration,
}

/// What a step's output has to show besides exit code 0.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    /// Nothing: a check, or tests of which there may be none.
    Success,
    /// At least one test that ran.
    Tests,
}

/// What a machine may lack that is no fault of the code: words of the step's output, and what to say instead; nothing where
/// the output says it itself, behind the words.
type Excuses = &'static [(&'static str, Option<&'static str>)];

/// cargo-deny clones the database anew on every machine.
const ADVISORIES: Excuses = &[(
    "failed to fetch advisory database",
    Some("the advisory database cannot be reached from here"),
)];

/// The guest runs on one kind of machine, wants packages and a kernel that may be out of reach, and memory.
const SOFT_ROCE: Excuses = &[(soft_roce::NO_GUEST, None)];

/// Seconds for the guest: minutes where nothing else runs, and a multiple on a machine that has other work.
const GUEST_SECONDS: &str = "1500";

/// Headers and a runtime of TensorRT's are fetched for one step alone.
const TENSORRT: Excuses = &[
    (
        crate::tensorrt::UNREACHABLE,
        Some("TensorRT's headers or its lean runtime cannot be fetched from here"),
    ),
    (
        crate::tensorrt::OTHER_MACHINE,
        Some("the lean runtime is for x86_64 machines"),
    ),
];

/// The steps that ran so far.
struct Steps {
    rows: Vec<Row>,
    /// Whether what the steps write is shown.
    show: bool,
}

impl Steps {
    /// Runs one step, showing its output, and notes how it ended.
    fn run(&mut self, step: &'static str, wants: Wants, command: Command) {
        self.run_unless(step, wants, &[], command);
    }

    /// Runs one step, which an excuse in its output turns from failed to left out.
    fn run_unless(
        &mut self,
        step: &'static str,
        wants: Wants,
        excuses: Excuses,
        mut command: Command,
    ) {
        println!("\n== {step}");
        let began = Instant::now();
        let ended = run_copying(step, &mut command, DEADLINE, self.show);
        if let Ok((status, output)) = &ended
            && !status.success()
            && Counts::read(output).failed == 0
            && let Some(why) = excuse(excuses, output)
        {
            println!("{step}: left out: {why}");
            return self.leave(step, &why);
        }
        let (mut outcome, counts) = match ended {
            Ok((status, output)) => (
                if status.success() {
                    Outcome::Passed
                } else {
                    Outcome::Failed
                },
                Counts::read(&output),
            ),
            Err(error) => {
                println!("{error:#}");
                (Outcome::Failed, Counts::default())
            }
        };
        if counts.failed > 0 {
            outcome = Outcome::Failed;
        }
        if wants == Wants::Tests && counts.passed + counts.failed == 0 {
            println!("{step}: not a single test ran");
            outcome = Outcome::Failed;
        }
        let counts = (counts != Counts::default()).then_some(counts);
        self.rows.push(Row {
            step,
            outcome,
            counts,
            took: began.elapsed(),
        });
    }

    /// Notes a step that is not run.
    fn leave(&mut self, step: &'static str, why: &str) {
        self.rows.push(Row {
            step,
            outcome: Outcome::Left(why.to_owned()),
            counts: None,
            took: Duration::ZERO,
        });
    }

    /// Prints the table and the closing line; true when nothing failed.
    fn close(&self) -> bool {
        println!("\n{:<16} {:<8} {:>8}  tests", "step", "result", "seconds");
        for row in &self.rows {
            let result = match &row.outcome {
                Outcome::Passed => "ok",
                Outcome::Failed => "FAILED",
                Outcome::Left(_) => "left out",
            };
            let note = match (&row.outcome, row.counts) {
                (Outcome::Left(why), _) => why.clone(),
                (_, Some(counts)) => told(counts),
                (_, None) => String::new(),
            };
            println!(
                "{:<16} {result:<8} {:>8.1}  {note}",
                row.step,
                row.took.as_secs_f64()
            );
        }
        let total = self
            .rows
            .iter()
            .filter_map(|row| row.counts)
            .fold(Counts::default(), Counts::and);
        let failed: Vec<&str> = self
            .rows
            .iter()
            .filter(|row| matches!(row.outcome, Outcome::Failed))
            .map(|row| row.step)
            .collect();
        println!();
        if !failed.is_empty() {
            println!("failed steps: {}", failed.join(", "));
        }
        println!("{} passed, {} failed", total.passed, total.failed);
        failed.is_empty()
    }
}

fn told(counts: Counts) -> String {
    let mut text = format!("{} passed", counts.passed);
    if counts.failed > 0 {
        text += &format!(", {} failed", counts.failed);
    }
    if counts.skipped > 0 {
        text += &format!(", {} skipped", counts.skipped);
    }
    text
}

/// What to say of an output that holds the words of an excuse.
fn excuse(excuses: Excuses, output: &str) -> Option<String> {
    excuses.iter().find_map(|(words, why)| {
        let (_, behind) = output.split_once(words)?;
        let said = behind.lines().next().unwrap_or_default();
        Some(
            why.unwrap_or(said.trim_start_matches([':', ' ']))
                .to_owned(),
        )
    })
}

/// Runs the checks; the exit code is 1 when one failed.
pub fn run(
    root: &Path,
    quick: bool,
    sanitizer: Option<Sanitizer>,
    filters: &[String],
) -> Result<i32> {
    let mut steps = Steps {
        rows: Vec::new(),
        show: true,
    };
    let began = Instant::now();
    setup::run(root, Models::Digits)?;
    steps.rows.push(Row {
        step: "setup",
        outcome: Outcome::Passed,
        counts: None,
        took: began.elapsed(),
    });

    if let Some(sanitizer) = sanitizer {
        let command = sanitize::tests(root, sanitizer, filters);
        steps.run(sanitizer.step(), Wants::Tests, command);
        return Ok(i32::from(!steps.close()));
    }
    if filters.is_empty() {
        steps.run(
            "format",
            Wants::Success,
            with(root, &["fmt", "--all", "--check"]),
        );
        if !quick {
            let clippy = [
                "clippy",
                "--workspace",
                "--all-targets",
                "--locked",
                "--",
                "--deny",
                "warnings",
            ];
            steps.run("clippy", Wants::Success, with(root, &clippy));
        }
    }
    steps.run("tests", Wants::Tests, tests(root, filters));
    if filters.is_empty() && !quick {
        steps.run(
            "doc tests",
            Wants::Success,
            with(root, &["test", "--workspace", "--doc", "--locked"]),
        );
        let mut documentation = with(
            root,
            &[
                "doc",
                "--workspace",
                "--no-deps",
                "--document-private-items",
                "--locked",
            ],
        );
        documentation.env(
            "RUSTDOCFLAGS",
            "--deny warnings --allow rustdoc::private-intra-doc-links",
        );
        steps.run("documentation", Wants::Success, documentation);
        steps.run("loom", Wants::Tests, loom(root));
        steps.run_unless("soft-roce", Wants::Tests, SOFT_ROCE, guest(root));
        let shim = with(root, &["xtask", "tensorrt", "--check"]);
        steps.run_unless("tensorrt", Wants::Tests, TENSORRT, shim);
        if on_path("cargo-deny") {
            let check = ["deny", "--locked", "check", "bans", "licenses", "sources"];
            steps.run("cargo-deny", Wants::Success, with(root, &check));
            let advisories = with(root, &["deny", "--locked", "check", "advisories"]);
            steps.run_unless("advisories", Wants::Success, ADVISORIES, advisories);
        } else {
            steps.leave(
                "cargo-deny",
                "not installed: cargo install --locked cargo-deny",
            );
        }
    }
    Ok(i32::from(!steps.close()))
}

/// Unit and integration tests: cargo-nextest where there is one, as it runs all of them at once and ends those that
/// hang; cargo's own harness elsewhere.
fn tests(root: &Path, filters: &[String]) -> Command {
    let mut command;
    if on_path("cargo-nextest") {
        command = with(
            root,
            &[
                "nextest",
                "run",
                "--workspace",
                "--locked",
                "--no-fail-fast",
            ],
        );
        command.args(filters);
    } else {
        command = with(
            root,
            &[
                "test",
                "--workspace",
                "--lib",
                "--bins",
                "--tests",
                "--locked",
                "--no-fail-fast",
            ],
        );
        command.arg("--").args(filters);
    }
    command
}

/// The tests that loom runs through every interleaving, built apart: the flag changes every crate.
fn loom(root: &Path) -> Command {
    let arguments = [
        "test",
        "--package",
        "qdl",
        "--lib",
        "--release",
        "--locked",
        "--target-dir",
        "target/loom",
        "loom_",
    ];
    let mut command = with(root, &arguments);
    command.env("RUSTFLAGS", "--cfg qdl_loom");
    command
}

/// This program's own `soft-roce`. Without a cargo in between, so that the emulator ends with whoever started it, and by the
/// name that stays when a build replaces the file.
fn guest(root: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("xtask").arg("soft-roce").current_dir(root);
    if std::env::var_os("QDL_GUEST_SECONDS").is_none() {
        command.env("QDL_GUEST_SECONDS", GUEST_SECONDS);
    }
    command
}

/// Cargo with these arguments, coloured when someone looks.
fn with(root: &Path, arguments: &[&str]) -> Command {
    let mut command = cargo(root);
    command.args(arguments);
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps that keep what they write to themselves: whoever runs these tests reads closing lines too.
    fn silent() -> Steps {
        Steps {
            rows: Vec::new(),
            show: false,
        }
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_step_without_tests_fails_where_tests_are_wanted() {
        let mut steps = silent();
        steps.run("check", Wants::Success, shell("true"));
        assert!(steps.close());
        steps.run(
            "empty",
            Wants::Tests,
            shell("echo 'test result: ok. 0 passed; 0 failed; 0 ignored'"),
        );
        assert!(!steps.close());
    }

    #[test]
    fn a_failure_in_the_output_outweighs_the_exit_code() {
        let mut steps = silent();
        steps.run(
            "liar",
            Wants::Tests,
            shell("echo 'test result: FAILED. 3 passed; 1 failed; 0 ignored'"),
        );
        assert!(!steps.close());
    }

    #[test]
    fn a_step_that_fails_or_cannot_start_fails() {
        let mut steps = silent();
        steps.run("broken", Wants::Success, shell("exit 2"));
        steps.run(
            "absent",
            Wants::Success,
            Command::new("no-such-program-anywhere"),
        );
        assert!(
            steps
                .rows
                .iter()
                .all(|row| matches!(row.outcome, Outcome::Failed))
        );
    }

    #[test]
    fn an_excuse_counts_for_a_step_that_failed_and_only_then() {
        let mut steps = silent();
        let excuses: Excuses = &[
            ("no network", Some("nothing can be reached")),
            ("no guest", None),
        ];
        let words = "echo there is no network here";
        steps.run_unless(
            "excused",
            Wants::Success,
            excuses,
            shell(&format!("{words}; false")),
        );
        steps.run_unless("done", Wants::Success, excuses, shell(words));
        steps.run_unless("broken", Wants::Success, excuses, shell("echo oh; false"));
        let failed = "echo 'test result: FAILED. 3 passed; 1 failed; 0 ignored'";
        steps.run_unless(
            "failed",
            Wants::Success,
            excuses,
            shell(&format!("{words}; {failed}; false")),
        );
        let said = "echo 'error: no guest: too little memory' >&2; echo more >&2; false";
        steps.run_unless("told", Wants::Success, excuses, shell(said));
        let outcomes: Vec<_> = steps.rows.iter().map(|row| &row.outcome).collect();
        assert!(
            matches!(
                outcomes[..],
                [
                    Outcome::Left(_),
                    Outcome::Passed,
                    Outcome::Failed,
                    Outcome::Failed,
                    Outcome::Left(_)
                ]
            ),
            "an excuse was misjudged"
        );
        assert!(matches!(outcomes[4], Outcome::Left(why) if why == "too little memory"));
    }
}
