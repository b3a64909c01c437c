//! Errors around a run: each names the object, the reason, and what to do.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a run could not be set up, ended early, or has no result.
#[derive(Debug, Error)]
pub enum LoadgenError {
    /// A field of the settings has a value with which LoadGen crashes or never ends.
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
    /// A `user.conf` or `audit.config` is unreadable, has an invalid line, or fails in LoadGen; or
    /// the process has read a `user.conf` before. The text names the file, line and reason.
    #[error("{0}")]
    Conf(String),
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
    /// A second run in one process: LoadGen would end the issue threads before the run begins.
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
    /// A thread for LoadGen cannot be started.
    #[error("cannot start LoadGen's thread: {0}")]
    Thread(#[source] io::Error),
    /// LoadGen lacks issue threads that the settings require, and would wait for them forever.
    #[error(
        "server_num_issue_query_threads is {wanted}, and LoadGen has {came} threads after 10 s"
    )]
    IssueThreads {
        /// Number of threads in the settings.
        wanted: u64,
        /// Number of registered threads.
        came: u64,
    },
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
