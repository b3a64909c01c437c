//! What goes wrong with one answer, in words, and whose fault it is.

use std::time::Duration;

use serde_json::Value;

use super::short;
use crate::engine::{Fault, streaming::TooLong};

/// Why there is no answer to a sequence.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(in crate::engine::http) enum Trouble {
    /// Whoever sent the sample is gone: nothing is to be said.
    #[error("nobody waits for the answer any more")]
    Unwanted,

    /// A prompt that no server is asked for.
    #[error("{0}")]
    Prompt(String),

    /// No connection, or one that broke before anything came.
    #[error("no connection: {0}")]
    Connect(String),

    /// The server would not take it for as long as it was asked.
    #[error(
        "HTTP {status}: {words} (for {} s); raise engine.http.busy_s or lower \
         engine.http.in_flight", .after.as_secs()
    )]
    Busy {
        /// Its last status.
        status: u16,
        /// Its last words.
        words: String,
        /// For how long it was asked.
        after: Duration,
    },

    /// A status other than 200.
    #[error("HTTP {status}: {words} (from {path}){}", advice(.status))]
    Status {
        /// The status.
        status: u16,
        /// What was asked for.
        path: &'static str,
        /// Its words.
        words: String,
    },

    /// An error event inside a stream that began well.
    #[error("error event{}: {words}", code(.status))]
    Said {
        /// The status that it names, where it does.
        status: Option<u16>,
        /// Its words.
        words: String,
    },

    /// The server gave the answer up, and says so where it says why an answer ends.
    #[error("aborted{}: {words}", code(.status))]
    Aborted {
        /// The status that it names, where it does.
        status: Option<u16>,
        /// Its words.
        words: String,
    },

    /// A stream that ends where no answer does.
    #[error("cut stream: it ended behind {tokens} tokens ({why})")]
    Cut {
        /// Tokens that had come.
        tokens: usize,
        /// What the socket says.
        why: String,
    },

    /// Nothing came for too long.
    #[error(
        "no token for {} s behind {tokens}: see engine.http.{}",
        .after.as_secs(), deadline(.tokens)
    )]
    Silent {
        /// Tokens that had come.
        tokens: usize,
        /// For how long nothing came.
        after: Duration,
    },

    /// Something that is no event of this dialect.
    #[error("it does not speak this dialect: {0}; see engine.http.dialect")]
    Garbled(String),

    /// A stream of text.
    #[error(
        "its stream carries no token ids: it is too old, or not asked as engine.http.dialect says"
    )]
    NoIds,

    /// Its count and ours differ.
    #[error(
        "it counts {said} tokens in an answer of which {came} came: tokens are lost on the way"
    )]
    Lost {
        /// As the server says.
        said: usize,
        /// As many as came.
        came: usize,
    },

    /// It counts nothing that ours could be held against.
    #[error(
        "it does not count the tokens of the {0}, so none can be found lost: it is too old, or not \
         asked as engine.http.dialect says"
    )]
    Uncounted(&'static str),

    /// It changed the prompt.
    #[error("it counts {said} tokens in a prompt of {sent}: it adds some, or cuts it")]
    PromptCount {
        /// As the server says.
        said: usize,
        /// As many as it was given.
        sent: usize,
    },

    /// It ends answers otherwise than the configuration says.
    #[error("its answers do not end as configured: {0}")]
    End(String),

    /// An id that the model cannot have.
    #[error("it answers with token {id}, beyond the vocabulary of {vocab}: see engine.http.vocab")]
    Vocabulary {
        /// The id.
        id: i32,
        /// Ids there are.
        vocab: usize,
    },

    /// An answer longer than asked for.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

impl Trouble {
    /// Whose fault it is. A sample's refuses the sample; the engine's ends the node; where it may
    /// be either's, the server is asked something harmless, and what it does decides.
    pub fn fault(&self) -> Fault {
        match self {
            Trouble::Unwanted | Trouble::Prompt(_) | Trouble::TooLong(_) => Fault::Sample,
            Trouble::Status { status, .. } => by_status(*status),
            // The server took the request: what it says of one answer holds for no other.
            Trouble::Said { status, .. } | Trouble::Aborted { status, .. } => match status {
                Some(status) if by_status(*status) == Fault::Sample => Fault::Sample,
                _ => Fault::Either,
            },
            Trouble::Connect(_)
            | Trouble::Busy { .. }
            | Trouble::Cut { .. }
            | Trouble::Silent { .. } => Fault::Either,
            Trouble::Garbled(_)
            | Trouble::NoIds
            | Trouble::Lost { .. }
            | Trouble::Uncounted(_)
            | Trouble::PromptCount { .. }
            | Trouble::End(_)
            | Trouble::Vocabulary { .. } => Fault::Engine,
        }
    }
}

/// Who is to blame for a status.
fn by_status(status: u16) -> Fault {
    match status {
        // This request, for what it holds or for its length.
        400 | 413 | 422 => Fault::Sample,
        // The server, or a request that breaks it.
        500..=599 => Fault::Either,
        // Every request: a wrong model, path or key.
        _ => Fault::Engine,
    }
}

fn advice(status: &u16) -> &'static str {
    match status {
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

/// From an error object in a stream: `{"message": …, "code": 500}`, or anything else.
pub(super) fn said(error: &Value) -> Trouble {
    Trouble::Said {
        status: error.get("code").and_then(status),
        words: text(error.get("message").unwrap_or(error)),
    }
}

/// From an event that is an error as a whole: the same object, alone or under `error`.
pub(in crate::engine::http) fn said_whole(data: &str) -> Trouble {
    match serde_json::from_str::<Value>(data) {
        Ok(value) => {
            let error = value.get("error").or_else(|| value.get("detail"));
            said(error.unwrap_or(&value))
        }
        Err(_) => Trouble::Said {
            status: None,
            words: short(data),
        },
    }
}

/// A status of HTTP that says that something went wrong.
pub(super) fn status(value: &Value) -> Option<u16> {
    let status = u16::try_from(value.as_u64()?).ok()?;
    (400..600).contains(&status).then_some(status)
}

/// The beginning of a text, or of what is in its place.
pub(super) fn text(words: &Value) -> String {
    words
        .as_str()
        .map_or_else(|| short(&words.to_string()), short)
}

/// The server's own words in the body of an error: `{"error": {"message": …}}`, `{"message": …}`,
/// `{"detail": …}`, or whatever is there.
pub(in crate::engine::http) fn words(body: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(body).ok();
    let found = parsed.as_ref().and_then(|v| {
        let error = v.get("error").unwrap_or(v);
        let text = error.get("message").or_else(|| error.get("detail"));
        text.or(Some(error)).and_then(Value::as_str)
    });
    short(found.unwrap_or(body))
}
