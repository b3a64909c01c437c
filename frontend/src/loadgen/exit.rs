//! Exit codes of the process, and the failure that ended a run.

use std::sync::{Arc, OnceLock};

/// Exit codes in `--help`, in the words of the README's table (a test compares the texts).
pub const HELP: &str = "\
Exit codes:
  0    success: LoadGen says VALID, an accuracy run is complete, a compliance test that sets its own
       length has all its data, or --check found nothing wrong
  1    the result does not count: LoadGen says INVALID, the wall clock was set during the run, or
       tokens were measured and an answer had fewer than two
  2    nothing was measured: an error in usage, configuration, data set, model or engine, or a peer
       that could not be reached at the start
  3    the run was aborted and its folder is marked INVALID: no peer was left, a sample was refused
       three times, a connection failed its warm-up, the watchdog ended the run, LoadGen threw an
       exception, its logs are incomplete, a file could not be written (no space left on device), or
       the engine of --local failed
  4    an answer is wrong: a response was not its sample's, a first token was not its answer's, or
       counts do not agree
  130  interrupted by SIGINT, SIGTERM or SIGHUP: the folder is marked INVALID";

/// The exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ExitCode {
    /// LoadGen says VALID, or an accuracy run is complete.
    Good = 0,
    /// LoadGen says INVALID, or logged errors.
    Invalid = 1,
    /// Wrong usage, configuration, data set, model or engine: nothing was measured.
    Setup = 2,
    /// Peers were lost, or the run was aborted.
    Lost = 3,
    /// A response is wrong for its sample, or counts do not agree.
    Mismatch = 4,
    /// SIGINT, SIGTERM or SIGHUP ended the run.
    Interrupted = 130,
}

impl ExitCode {
    /// Returns the number of this exit code.
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// Cause of an aborted run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct Failure {
    pub code: ExitCode,
    /// One line with the peer, the time and the reason.
    pub cause: String,
}

/// Shared record of the first failure of a run; later failures do not replace it.
#[derive(Clone, Debug, Default)]
pub struct Verdict(Arc<OnceLock<Failure>>);

impl Verdict {
    /// Records the failure; the first failure also aborts LoadGen's test, with `cause`.
    pub fn fail(&self, code: ExitCode, cause: impl Into<String>) {
        let cause = cause.into();
        if self.note(code, cause.clone()) {
            loadgen_bridge::abort_test(&cause);
        }
    }

    /// Records the failure without a call to LoadGen; returns true for the first failure.
    fn note(&self, code: ExitCode, cause: String) -> bool {
        self.0.set(Failure { code, cause }).is_ok()
    }

    pub fn failure(&self) -> Option<Failure> {
        self.0.get().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_stays() {
        let verdict = Verdict::default();
        assert_eq!(verdict.failure(), None);
        assert!(verdict.note(ExitCode::Lost, "dgx-01 is gone".to_owned()));
        assert!(!verdict.note(ExitCode::Mismatch, "later".to_owned()));
        let failure = verdict.failure().expect("noted");
        assert_eq!(failure.code, ExitCode::Lost);
        assert_eq!(failure.cause.as_str(), "dgx-01 is gone");
    }

    /// The exit codes of this program in the README's table, as `code words`.
    fn readme() -> Vec<String> {
        let text = include_str!("../../../README.md").replace('`', "");
        let (_, table) = text.split_once("| frontend | meaning |").expect("a table");
        let rows = table.lines().skip(2).map_while(|l| l.strip_prefix("| "));
        rows.map(|row| row.trim_end_matches(" |").replacen(" |", "", 1))
            .collect()
    }

    #[test]
    fn codes_and_help_are_those_of_the_manual() {
        use ExitCode::*;
        let codes = [Good, Invalid, Setup, Lost, Mismatch, Interrupted].map(ExitCode::code);
        assert_eq!(codes, [0, 1, 2, 3, 4, 130]);
        let rows = readme();
        let first = |row: &String| row.split(' ').next().unwrap_or_default().to_owned();
        assert_eq!(
            rows.iter().map(first).collect::<Vec<_>>(),
            codes.map(|code| code.to_string())
        );
        let words: Vec<_> = HELP.split_whitespace().collect();
        assert_eq!(words.join(" "), format!("Exit codes: {}", rows.join(" ")));
    }
}
