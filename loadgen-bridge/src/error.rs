//! Errors around a run: each names the object, the reason, and what to do.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a run could not be set up, ended early, or has no result.
#[derive(Debug, Error)]
pub enum LoadgenError {
    /// A field of the settings has a value that LoadGen does not survive.
    #[error("test settings: {field}: {why}")]
    Settings {
        /// The field of `TestSettings`, or of the QSL.
        field: &'static str,
        /// What is wrong with the value.
        why: String,
    },
    /// A string for LoadGen contains a zero byte.
    #[error("{field}: there is a zero byte in it")]
    Nul {
        /// Name of the string.
        field: &'static str,
    },
    /// A `user.conf` or `audit.config` cannot be read.
    #[error("cannot read {path}: {error}")]
    ConfFile {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// A line of a `user.conf` or `audit.config` is invalid.
    #[error("{path}:{line}: {why}")]
    ConfLine {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with the line.
        why: String,
    },
    /// No line of a `user.conf` is for the model, nor for all models.
    #[error("{path}: no line is for model {model:?}, nor for *; it has lines for: {has}")]
    ConfModel {
        /// The file.
        path: PathBuf,
        /// The model of the run.
        model: String,
        /// The models in the file.
        has: String,
    },
    /// LoadGen rejected a configuration that passed this crate's checks.
    #[error("{path}: LoadGen's FromConfig failed: {why}")]
    FromConfig {
        /// The file.
        path: PathBuf,
        /// LoadGen's error.
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
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The thread for LoadGen cannot be started.
    #[error("cannot start LoadGen's thread: {0}")]
    Thread(#[source] io::Error),
    /// Fewer issue threads came than the settings require. LoadGen would wait for them forever.
    #[error(
        "server_num_issue_query_threads is {wanted}, and {came} threads called register_issue_query_thread within 10 s"
    )]
    IssueThreads {
        /// Number of issue threads in the settings.
        wanted: u64,
        /// Number of issue threads that came.
        came: u64,
    },
    /// One issue thread too many registers. LoadGen would write past the end of a list.
    #[error(
        "a thread more than server_num_issue_query_threads called register_issue_query_thread; that many may"
    )]
    TooManyIssueThreads,
    /// An issue thread waited 60 s, and no run began.
    #[error("register_issue_query_thread: no test that wants issue threads began within 60 s")]
    NoTest,
    /// The SUT or the QSL panicked, which aborted the test.
    #[error("{place} panicked, so the test was aborted: {message}")]
    Panicked {
        /// Trait and method that panicked.
        place: &'static str,
        /// Message of the panic.
        message: String,
    },
    /// The test was aborted by [`abort_test`](crate::abort_test).
    #[error("the test was aborted: {reason}")]
    Aborted {
        /// The reason that the caller gave.
        reason: String,
    },
    /// LoadGen threw a C++ exception, with this text.
    #[error("LoadGen threw an exception: {0}")]
    Exception(String),
    /// LoadGen ended, but its summary or its detailed log cannot be read.
    #[error("LoadGen ended, but its log {path} cannot be read: {why}")]
    Result {
        /// The file.
        path: PathBuf,
        /// What is wrong with the file.
        why: String,
    },
}
