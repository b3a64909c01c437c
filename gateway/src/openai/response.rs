//! Answers, written without a tree of JSON values: one event a token.

use serde::Serialize;
use serde_json::json;

use super::Endpoint;

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
/// An event appends to `out` and allocates nothing else.
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
    pub fn new(identity: &Identity<'_>, endpoint: Endpoint, request: &super::Completion) -> Self {
        let object = match (endpoint, request.stream) {
            (Endpoint::Completions, _) => "text_completion",
            (Endpoint::Chat, true) => "chat.completion.chunk",
            (Endpoint::Chat, false) => "chat.completion",
        };
        let [id, model] = [identity.id, identity.model].map(|text| json!(text));
        let created = identity.created;
        let head = format!(
            "data: {{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model}"
        );
        Self {
            head: head.into_bytes().into(),
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
            (Endpoint::Completions, _) => b",\"choices\":[{\"index\":0,\"text\":",
            (Endpoint::Chat, true) => {
                b",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":"
            }
            (Endpoint::Chat, false) => b",\"choices\":[{\"index\":0,\"delta\":{\"content\":",
        });
        self.is_first = false;
        write_json(out, text);
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
            Endpoint::Completions => b",\"choices\":[{\"index\":0,\"text\":",
            Endpoint::Chat => {
                b",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
            }
        });
        write_json(out, answer.text);
        self.end_of_choice(out, answer.ids, Some(answer.finish));
        counts(out, answer.usage);
        out.push(b'}');
    }

    fn end_of_choice(&self, out: &mut Vec<u8>, ids: &[i32], finish: Option<Finish>) {
        out.extend_from_slice(match self.endpoint {
            Endpoint::Completions => b",\"logprobs\":null,\"finish_reason\":",
            Endpoint::Chat => b"},\"logprobs\":null,\"finish_reason\":",
        });
        out.extend_from_slice(Finish::json(finish));
        if self.has_ids {
            out.extend_from_slice(b",\"token_ids\":");
            write_json(out, ids);
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

/// Appends a text or a list as JSON.
fn write_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    // Writing to memory cannot fail.
    let _ = serde_json::to_writer(out, value);
}

fn counts(out: &mut Vec<u8>, usage: Usage) {
    let Usage {
        prompt_tokens,
        completion_tokens,
    } = usage;
    let total_tokens = u64::from(prompt_tokens) + u64::from(completion_tokens);
    let usage = json!({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
        "total_tokens": total_tokens});
    out.extend_from_slice(b",\"usage\":");
    write_json(out, &usage);
}

/// The body of `GET /v1/models`.
pub fn models(model: &str, created: u64) -> String {
    let model = json!({"id": model, "object": "model", "created": created, "owned_by": "qdl"});
    json!({"object": "list", "data": [model]}).to_string()
}

/// The body of `GET /health`: the connections to accelerators that are up.
pub fn health(connections: usize) -> String {
    let status = if connections > 0 { "ok" } else { "unavailable" };
    json!({"status": status, "connections": connections}).to_string()
}
