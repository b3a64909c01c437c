//! Errors around a run: each names the object, the reason, and what to do.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a run could not be set up, ended early, or has no result.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say what each error and field is")]
pub enum LoadgenError {
    #[error("test settings: {field}: {why}")]
    Settings { field: &'static str, why: String },
    #[error("{field}: there is a zero byte in it")]
    Nul { field: &'static str },
    /// A `user.conf` or `audit.config` is unreadable, has an invalid line, or fails in LoadGen; or
    /// the process has read a `user.conf` before. The text names the file, line and reason.
    #[error("{0}")]
    Conf(String),
    #[error("{path}: no line is for model {model:?}, nor for *; it has lines for: {has}")]
    ConfModel {
        path: PathBuf,
        model: String,
        has: String,
    },
    #[error(
        "this process has run a test already; LoadGen keeps its end, so run each test in its own process"
    )]
    SecondRun,
    #[error("cannot write LoadGen's log {path}: {}", disk::words(.error))]
    LogFile {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("cannot start LoadGen's thread: {0}")]
    Thread(#[source] io::Error),
    #[error(
        "server_num_issue_query_threads is {wanted}, and LoadGen has {came} threads after 10 s"
    )]
    IssueThreads { wanted: u64, came: u64 },
    #[error("{place} panicked, so the test was aborted: {message}")]
    Panicked {
        place: &'static str,
        message: String,
    },
    #[error("the test was aborted: {reason}")]
    Aborted { reason: String },
    #[error("LoadGen threw an exception: {0}")]
    Exception(String),
    #[error("LoadGen ended, but its log {path} is not whole: {why}")]
    Result { path: PathBuf, why: String },
}
