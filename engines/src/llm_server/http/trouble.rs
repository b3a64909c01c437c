//! Errors of one answer: the message, and whether sample or engine is at fault.

use std::time::Duration;

use serde_json::Value;

use crate::{Fault, error::shorten, llm_server::account::AnswerError, streaming::TooLong};

/// Reason why a sequence has no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum Trouble {
    #[error("the frontend of the sample is gone")]
    Unwanted,
    #[error("{0}")]
    Prompt(String),
    /// No connection could be opened, or the connection broke before a response.
    #[error("no connection: {0}")]
    Connect(String),
    #[error(
        "HTTP {status}: {words} (for {} s); raise engine.http.busy_s or lower \
         engine.http.in_flight", .after.as_secs()
    )]
    Busy {
        status: u16,
        words: String,
        after: Duration,
    },
    #[error("HTTP {status}: {words} (from {path}){}", advice(.status))]
    Status {
        status: u16,
        path: &'static str,
        words: String,
        /// The wait that the server asks for.
        retry_after: Option<Duration>,
    },
    /// The answer is no event stream: compressed, a page, or whole. The text says what it is.
    #[error("its answer is no event stream: {0}")]
    NoStream(String),
    /// An error event in a stream that began well.
    #[error("error event{}: {words}", code(.status))]
    Said { status: Option<u16>, words: String },
    /// The server's reason for the answer's end says that the server gave up.
    #[error("aborted{}: {words}", code(.status))]
    Aborted { status: Option<u16>, words: String },
    #[error("cut stream: it ended behind {tokens} tokens ({why})")]
    Cut { tokens: usize, why: String },
    #[error(
        "no token for {} s behind {tokens}: see engine.http.{}",
        .after.as_secs(), deadline(.tokens)
    )]
    Silent { tokens: usize, after: Duration },
    #[error("it does not speak this dialect: {0}; see engine.http.dialect")]
    Garbled(String),
    /// The answer breaks a rule. The text says which.
    #[error("{0}")]
    Answer(String),
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

impl From<String> for Trouble {
    fn from(rule: String) -> Self {
        Trouble::Answer(rule)
    }
}

impl From<AnswerError> for Trouble {
    fn from(error: AnswerError) -> Self {
        match error {
            AnswerError::TooLong(why) => Trouble::TooLong(why),
            AnswerError::Rule(rule) => Trouble::Answer(rule),
        }
    }
}

impl Trouble {
    /// Whether the error shows that no server answers for now, as during its restart.
    pub fn is_absence(&self) -> bool {
        match self {
            Trouble::Connect(_) | Trouble::Busy { .. } => true,
            Trouble::Status { status, .. } => matches!(status, 502..=504),
            _ => false,
        }
    }

    /// Returns whether sample or engine is at fault. A sample's fault refuses the sample; an
    /// engine's fault ends the node. If either may be at fault, a trial of the server decides.
    pub fn fault(&self) -> Fault {
        match self {
            Trouble::Unwanted | Trouble::Prompt(_) | Trouble::TooLong(_) => Fault::Sample,
            Trouble::Status { status, .. } => by_status(*status),
            // The server accepted the request: the error may concern this answer alone.
            Trouble::Said { status, .. } | Trouble::Aborted { status, .. } => match status {
                Some(status) if by_status(*status) == Fault::Sample => Fault::Sample,
                _ => Fault::Either,
            },
            Trouble::Connect(_)
            | Trouble::Busy { .. }
            | Trouble::Cut { .. }
            | Trouble::Silent { .. } => Fault::Either,
            Trouble::Garbled(_) | Trouble::NoStream(_) | Trouble::Answer(_) => Fault::Engine,
        }
    }
}

fn by_status(status: u16) -> Fault {
    match status {
        // The content or length of this request is at fault.
        400 | 413 | 422 => Fault::Sample,
        // The server is at fault, or a request that crashes the server.
        500..=599 => Fault::Either,
        // Every request would fail: the model, path or key is wrong.
        _ => Fault::Engine,
    }
}

fn advice(status: &u16) -> &'static str {
    match status {
        300..=399 => ": give the address of the server itself in engine.http.url",
        401 => "; start it without an API key",
        403 => "; vLLM wants --enable-scale-out for this path",
        404 => "; see engine.http.model and engine.http.dialect",
        _ => "",
    }
}

fn code(status: &Option<u16>) -> String {
    status.map_or_else(String::new, |s| format!(" {s}"))
}

fn deadline(tokens: &usize) -> &'static str {
    match tokens {
        0 => "first_token_s",
        _ => "next_token_s",
    }
}

/// Parses an error object in a stream: `{"message": …, "code": 500}`, or any other value.
pub(super) fn parse_error(error: &Value) -> Trouble {
    Trouble::Said {
        status: error.get("code").and_then(status),
        words: text(error.get("message").unwrap_or(error)),
    }
}

/// Parses an event with an error object, alone or as the value of `error` or `detail`.
pub(super) fn parse_error_event(data: &str) -> Trouble {
    let value = serde_json::from_str(data).unwrap_or_else(|_| Value::from(data));
    let error = value.get("error").or_else(|| value.get("detail"));
    parse_error(error.unwrap_or(&value))
}

/// Whether a JSON text is an error object, in one of the forms of an error event.
pub(super) fn is_error(text: &str) -> bool {
    let value = serde_json::from_str(text).unwrap_or(Value::Null);
    let keys = ["error", "detail", "message"];
    keys.iter().any(|key| value.get(key).is_some())
}

pub(super) fn status(value: &Value) -> Option<u16> {
    let status = u16::try_from(value.as_u64()?).ok()?;
    (400..600).contains(&status).then_some(status)
}

/// The beginning of a JSON text, or of another value's JSON, on one line.
pub(super) fn text(words: &Value) -> String {
    words
        .as_str()
        .map_or_else(|| shorten(&words.to_string()), shorten)
}

/// The server's message in the body of an error response, which has the forms of an error event.
pub(super) fn words(body: &str) -> String {
    match parse_error_event(body) {
        Trouble::Said { words, .. } => words,
        other => other.to_string(),
    }
}
