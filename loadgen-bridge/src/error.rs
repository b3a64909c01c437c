//! What can go wrong around a run, each with what it concerns and what to do.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a run could not be set up, was cut short, or left no result.
#[derive(Debug, Error)]
pub enum LoadgenError {
    /// A field of the settings has a value that LoadGen would trip over.
    #[error("test settings: {field}: {why}")]
    Settings {
        /// The field of `TestSettings`, or of the QSL.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A string that goes to LoadGen has a zero byte in it.
    #[error("{field}: there is a zero byte in it")]
    Nul {
        /// Which string.
        field: &'static str,
    },
    /// A `user.conf` or `audit.config` cannot be read.
    #[error("cannot read {path}: {error}")]
    ConfFile {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// A line of a `user.conf` or `audit.config` is wrong.
    #[error("{path}:{line}: {why}")]
    ConfLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// No line of a `user.conf` is for the model, or for all of them.
    #[error("{path}: no line is for model {model:?}, nor for *; it has lines for: {has}")]
    ConfModel {
        /// The file.
        path: PathBuf,
        /// The model that was asked for.
        model: String,
        /// The models of the file.
        has: String,
    },
    /// LoadGen itself refused a configuration that looked right.
    #[error("{path}: LoadGen's FromConfig failed: {why}")]
    FromConfig {
        /// The file.
        path: PathBuf,
        /// Its error.
        why: String,
    },
    /// A second `user.conf` in one process, which LoadGen counts as an error of every later run.
    #[error(
        "{path}: this process has taken a user.conf already; LoadGen allows one, so run each test in its own process"
    )]
    SecondConf {
        /// The second file.
        path: PathBuf,
    },
    /// A second run in one process, whose issue threads LoadGen would end before it begins.
    #[error(
        "this process has run a test already; LoadGen keeps its end, so run each test in its own process"
    )]
    SecondRun,
    /// A log file cannot be written.
    #[error("cannot write LoadGen's log {path}: {error}")]
    LogFile {
        /// The file or its folder.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// The thread that LoadGen is to run on cannot be started.
    #[error("cannot start LoadGen's thread: {0}")]
    Thread(#[source] io::Error),
    /// Fewer issue threads came than the settings ask for. LoadGen would wait for them for ever.
    #[error(
        "server_num_issue_query_threads is {wanted}, and {came} threads called register_issue_query_thread within 10 s"
    )]
    IssueThreads {
        /// How many the settings ask for.
        wanted: u64,
        /// How many came.
        came: u64,
    },
    /// This issue thread is one more than the settings ask
    /// for. LoadGen would write past the end of a list.
    #[error(
        "a thread more than server_num_issue_query_threads called register_issue_query_thread; that many may"
    )]
    TooManyIssueThreads,
    /// An issue thread waited in vain for a run to begin.
    #[error("register_issue_query_thread: no test that wants issue threads began within 60 s")]
    NoTest,
    /// The SUT or the QSL panicked. The test was aborted.
    #[error("{place} panicked, so the test was aborted: {message}")]
    Panicked {
        /// Which method.
        place: &'static str,
        /// What the panic said.
        message: String,
    },
    /// The test was aborted by [`abort_test`](crate::abort_test).
    #[error("the test was aborted: {reason}")]
    Aborted {
        /// What the caller gave as the reason.
        reason: String,
    },
    /// A C++ exception came out of LoadGen.
    #[error("LoadGen threw an exception: {0}")]
    Exception(String),
    /// LoadGen ended, and its summary or its detailed log cannot be read.
    #[error("LoadGen ended, but its log {path} cannot be read: {why}")]
    Result {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
}
