//! Answers, written without a tree of JSON values: one event a token.

use super::Endpoint;
use super::escape::{escape, string};

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end token or a stop string.
    Stop,
    /// The limit of tokens.
    Length,
}

impl Finish {
    fn json(finish: Option<Self>) -> &'static [u8] {
        match finish {
            None => b"null",
            Some(Self::Stop) => b"\"stop\"",
            Some(Self::Length) => b"\"length\"",
        }
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u32,
    /// Of the answer.
    pub completion_tokens: u32,
}

/// Writes the answer to one request, as events or whole.
///
/// Each method appends to `out` and allocates nothing else.
#[derive(Clone, Debug)]
pub struct Writer {
    /// An event up to its choices; `data: ` is not part of a whole answer.
    head: Box<[u8]>,
    endpoint: Endpoint,
    has_usage: bool,
    has_ids: bool,
    is_first: bool,
}

const DATA: &[u8] = b"data: ";

impl Writer {
    /// A writer of the answer to `request`: of events if it asks for a stream.
    pub fn new(identity: &Identity<'_>, request: &super::Completion) -> Self {
        let endpoint = match request.prompt {
            super::Prompt::Chat(_) => Endpoint::Chat,
            _ => Endpoint::Completions,
        };
        let object = match (endpoint, request.stream) {
            (Endpoint::Completions, _) => "text_completion",
            (Endpoint::Chat, true) => "chat.completion.chunk",
            (Endpoint::Chat, false) => "chat.completion",
        };
        let mut head = Vec::with_capacity(160);
        head.extend_from_slice(DATA);
        head.extend_from_slice(b"{\"id\":");
        string(&mut head, identity.id);
        head.extend_from_slice(b",\"object\":\"");
        head.extend_from_slice(object.as_bytes());
        head.extend_from_slice(b"\",\"created\":");
        decimal(&mut head, identity.created);
        head.extend_from_slice(b",\"model\":");
        string(&mut head, identity.model);
        Self {
            head: head.into(),
            endpoint,
            has_usage: request.stream && request.include_usage,
            has_ids: request.return_token_ids,
            is_first: true,
        }
    }

    /// Appends one event: the text of `ids`, and why the answer ended if this event is the last.
    pub fn event(&mut self, out: &mut Vec<u8>, text: &str, ids: &[i32], finish: Option<Finish>) {
        out.reserve(self.head.len() + text.len() + 160);
        out.extend_from_slice(&self.head);
        out.extend_from_slice(match (self.endpoint, self.is_first) {
            (Endpoint::Completions, _) => b",\"choices\":[{\"index\":0,\"text\":\"",
            (Endpoint::Chat, true) => {
                b",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\""
            }
            (Endpoint::Chat, false) => b",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"",
        });
        self.is_first = false;
        escape(out, text);
        self.end_of_choice(out, ids, finish);
        if self.has_usage {
            out.extend_from_slice(b",\"usage\":null");
        }
        out.extend_from_slice(b"}\n\n");
    }

    /// Appends the event with the counts, if the request asks for one.
    pub fn usage_event(&self, out: &mut Vec<u8>, usage: Usage) {
        if self.has_usage {
            out.extend_from_slice(&self.head);
            out.extend_from_slice(b",\"choices\":[]");
            counts(out, usage);
            out.extend_from_slice(b"}\n\n");
        }
    }

    /// Appends the event that ends a stream.
    pub fn done(out: &mut Vec<u8>) {
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// Appends the body of a whole answer.
    pub fn whole(&self, out: &mut Vec<u8>, answer: &Answer<'_>) {
        out.extend_from_slice(&self.head[DATA.len()..]);
        out.extend_from_slice(match self.endpoint {
            Endpoint::Completions => b",\"choices\":[{\"index\":0,\"text\":\"",
            Endpoint::Chat => {
                b",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\""
            }
        });
        escape(out, answer.text);
        self.end_of_choice(out, answer.ids, Some(answer.finish));
        counts(out, answer.usage);
        out.push(b'}');
    }

    fn end_of_choice(&self, out: &mut Vec<u8>, ids: &[i32], finish: Option<Finish>) {
        out.extend_from_slice(match self.endpoint {
            Endpoint::Completions => b"\",\"logprobs\":null,\"finish_reason\":",
            Endpoint::Chat => b"\"},\"logprobs\":null,\"finish_reason\":",
        });
        out.extend_from_slice(Finish::json(finish));
        if self.has_ids {
            out.extend_from_slice(b",\"token_ids\":[");
            for (i, id) in ids.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                if *id < 0 {
                    out.push(b'-');
                }
                decimal(out, id.unsigned_abs().into());
            }
            out.push(b']');
        }
        out.extend_from_slice(b"}]");
    }
}

/// What each event of an answer repeats.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// `cmpl-` or `chatcmpl-` and a number.
    pub id: &'a str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: &'a str,
}

/// A whole answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// Its text.
    pub text: &'a str,
    /// Its tokens; written if the request asks for them.
    pub ids: &'a [i32],
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the request.
    pub usage: Usage,
}

fn counts(out: &mut Vec<u8>, usage: Usage) {
    out.extend_from_slice(b",\"usage\":{\"prompt_tokens\":");
    decimal(out, usage.prompt_tokens.into());
    out.extend_from_slice(b",\"completion_tokens\":");
    decimal(out, usage.completion_tokens.into());
    out.extend_from_slice(b",\"total_tokens\":");
    decimal(
        out,
        u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
    );
    out.push(b'}');
}

/// Appends the body of `GET /v1/models`.
pub fn models(out: &mut Vec<u8>, model: &str, created: u64) {
    out.extend_from_slice(b"{\"object\":\"list\",\"data\":[{\"id\":");
    string(out, model);
    out.extend_from_slice(b",\"object\":\"model\",\"created\":");
    decimal(out, created);
    out.extend_from_slice(b",\"owned_by\":\"qdl\"}]}");
}

/// Appends the body of `GET /health`: the number of accelerators that take requests.
pub fn health(out: &mut Vec<u8>, accelerators: u32) {
    let status = if accelerators > 0 {
        "ok"
    } else {
        "unavailable"
    };
    out.extend_from_slice(b"{\"status\":");
    string(out, status);
    out.extend_from_slice(b",\"accelerators\":");
    decimal(out, accelerators.into());
    out.push(b'}');
}

fn decimal(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut begin = digits.len();
    loop {
        begin -= 1;
        digits[begin] = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[begin..]);
}
