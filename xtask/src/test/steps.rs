//! Runs the steps, records their results, and sums up.
//!
//! The last line is `N passed, N failed`, with `, N skipped` if tests are skipped; the lines above
//! have their reasons. A step that failed without a failed test, such as a build, counts as one
//! failure: the last line alone must show it.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use launch::run_copying;

use super::counts::Counts;

const DEADLINE: Duration = Duration::from_secs(3600);

const SHOWN: usize = 200;

enum Outcome {
    Passed,
    Failed,
    /// The step did not run, for this reason.
    Skipped(String),
}

impl Outcome {
    fn of(passed: bool) -> Self {
        if passed { Self::Passed } else { Self::Failed }
    }
}

struct StepResult {
    step: &'static str,
    outcome: Outcome,
    counts: Option<Counts>,
    took: Duration,
}

/// Requirement for a step's output, besides exit code 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// No requirement: a check, or tests of which there may be none.
    Success,
    /// At least one test ran.
    Tests,
}

/// What a machine may lack without a fault of the code: text of the step's output, and the reason
/// to print. `None` prints the rest of the output's line after that text.
pub type Excuses = &'static [(&'static str, Option<&'static str>)];

pub struct Steps {
    rows: Vec<StepResult>,
    show: bool,
    /// File with the output of passed tests, if cargo-nextest runs them.
    report: PathBuf,
}

impl Steps {
    pub fn new(report: PathBuf) -> Self {
        Self {
            rows: Vec::new(),
            show: true,
            report,
        }
    }

    /// Runs a step inside this program. The step fails if `check` returns complaints.
    pub fn check(&mut self, step: &'static str, check: impl FnOnce() -> Result<Vec<String>>) {
        println!("\n== {step}");
        let began = Instant::now();
        let complaints = check().unwrap_or_else(|error| vec![format!("{error:#}")]);
        if self.show {
            for complaint in complaints.iter().take(SHOWN) {
                println!("{complaint}");
            }
            if let Some(more @ 1..) = complaints.len().checked_sub(SHOWN) {
                println!("... and {more} more");
            }
        }
        self.rows.push(StepResult {
            step,
            outcome: Outcome::of(complaints.is_empty()),
            counts: None,
            took: began.elapsed(),
        });
    }

    pub fn run(&mut self, step: &'static str, wants: Wants, command: Command) {
        self.run_unless(step, wants, &[], command);
    }

    /// Runs a step. A failed step counts as left out if its output contains an excuse.
    pub fn run_unless(
        &mut self,
        step: &'static str,
        wants: Wants,
        excuses: Excuses,
        mut command: Command,
    ) {
        println!("\n== {step}");
        let began = Instant::now();
        // An earlier step may have left a report.
        let _ = std::fs::remove_file(&self.report);
        let ended = run_copying(step, &mut command, DEADLINE, self.show);
        let report = std::fs::read_to_string(&self.report).unwrap_or_default();
        let (mut outcome, counts) = match ended {
            Ok((status, output)) => {
                let counts = Counts::read(&output, &report);
                if !status.success()
                    && counts.failed == 0
                    && let Some(why) = excuse(excuses, &output)
                {
                    println!("{step}: left out: {why}");
                    return self.leave(step, &why);
                }
                (Outcome::of(status.success()), counts)
            }
            Err(error) => {
                println!("{error:#}");
                (Outcome::Failed, Counts::default())
            }
        };
        if counts.failed > 0 {
            outcome = Outcome::Failed;
        }
        if wants == Wants::Tests && counts == Counts::default() {
            println!("{step}: not a single test ran");
            outcome = Outcome::Failed;
        }
        let counts = (counts != Counts::default()).then_some(counts);
        self.rows.push(StepResult {
            step,
            outcome,
            counts,
            took: began.elapsed(),
        });
    }

    pub fn leave(&mut self, step: &'static str, why: &str) {
        self.rows.push(StepResult {
            step,
            outcome: Outcome::Skipped(why.to_owned()),
            counts: None,
            took: Duration::ZERO,
        });
    }

    pub fn failed(&self) -> bool {
        !self.closing().1
    }

    /// Prints the table and the closing lines; returns the exit code.
    pub fn close(&self) -> i32 {
        println!("\n{:<16} {:<8} {:>8}  tests", "step", "result", "seconds");
        for row in &self.rows {
            let result = match &row.outcome {
                Outcome::Passed => "ok",
                Outcome::Failed => "FAILED",
                Outcome::Skipped(_) => "left out",
            };
            let note = match (&row.outcome, &row.counts) {
                (Outcome::Skipped(why), _) => why.clone(),
                (_, Some(counts)) => counts.to_string(),
                (_, None) => String::new(),
            };
            println!(
                "{:<16} {result:<8} {:>8.1}  {note}",
                row.step,
                row.took.as_secs_f64()
            );
        }
        println!();
        let (lines, good) = self.closing();
        println!("{lines}");
        i32::from(!good)
    }

    /// The closing lines, and whether no step failed.
    fn closing(&self) -> (String, bool) {
        let failed: Vec<&StepResult> = self
            .rows
            .iter()
            .filter(|row| matches!(row.outcome, Outcome::Failed))
            .collect();
        let counted = self.rows.iter().filter_map(|row| row.counts.as_ref());
        let mut total = counted.fold(Counts::default(), Counts::and);
        let has_none = |row: &&&StepResult| row.counts.as_ref().is_none_or(|c| c.failed == 0);
        total.failed += failed.iter().filter(has_none).count() as u64;
        let mut lines = String::new();
        if !failed.is_empty() {
            let names: Vec<_> = failed.iter().map(|row| row.step).collect();
            lines = format!("failed steps: {}\n", names.join(", "));
        }
        for (why, number) in &total.skipped {
            let _ = writeln!(lines, "{number} skipped: {why}");
        }
        lines += &total.to_string();
        (lines, failed.is_empty())
    }
}

/// The reason to print for an output that contains an excuse.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps that print nothing: the runner of these tests reads closing lines.
    fn silent() -> Steps {
        Steps {
            show: false,
            ..Steps::new(PathBuf::new())
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
        assert_eq!(steps.closing(), ("0 passed, 0 failed".to_owned(), true));
        steps.run(
            "empty",
            Wants::Tests,
            shell("echo 'test result: ok. 0 passed; 0 failed; 0 ignored'"),
        );
        let closing = "failed steps: empty\n0 passed, 1 failed".to_owned();
        assert_eq!(steps.closing(), (closing, false));
    }

    #[test]
    fn a_failure_in_the_output_outweighs_the_exit_code() {
        let mut steps = silent();
        steps.run(
            "liar",
            Wants::Tests,
            shell("echo 'test result: FAILED. 3 passed; 1 failed; 0 ignored'"),
        );
        let closing = "failed steps: liar\n3 passed, 1 failed".to_owned();
        assert_eq!(steps.closing(), (closing, false));
    }

    #[test]
    fn each_failed_step_is_in_the_last_line() {
        let mut steps = silent();
        let tests = "echo 'skipped: no libfabric'; \
                     echo 'test result: FAILED. 6 passed; 2 failed; 1 ignored'; false";
        steps.run("tests", Wants::Tests, shell(tests));
        steps.run("guest", Wants::Tests, shell("exit 1"));
        steps.run("format", Wants::Success, Command::new("no-such-program"));
        steps.check("rooms", || Ok(vec!["a circle".to_owned()]));
        steps.check("unreadable", || anyhow::bail!("no such file"));
        steps.check("columns", || Ok(Vec::new()));
        steps.leave("advisories", "no network");
        let closing = "failed steps: tests, guest, format, rooms, unreadable\n\
                       1 skipped: no libfabric\n5 passed, 6 failed, 1 skipped";
        assert_eq!(steps.closing(), (closing.to_owned(), false));
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
        steps.run_unless("reason", Wants::Success, excuses, shell(said));
        let outcomes: Vec<_> = steps.rows.iter().map(|row| &row.outcome).collect();
        assert!(
            matches!(
                outcomes[..],
                [
                    Outcome::Skipped(_),
                    Outcome::Passed,
                    Outcome::Failed,
                    Outcome::Failed,
                    Outcome::Skipped(_)
                ]
            ),
            "an excuse was misjudged"
        );
        assert!(matches!(outcomes[4], Outcome::Skipped(why) if why == "too little memory"));
    }
}
