//! Reads the events of an answer, of every dialect.
//!
//! ```text
//! vLLM, trtllm-serve
//! data: {"choices":[{"index":0,"text":"","token_ids":[504],"finish_reason":null}]}
//! data: {"choices":[{"index":0,"text":"","token_ids":[2],"finish_reason":"stop"}]}
//! data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":2}}
//! data: [DONE]
//! SGLang: if its scheduler gives up, the answer ends with {"type":"abort"}
//! data: {"output_ids":[504],"meta_info":{"finish_reason":null,"prompt_tokens":8,
//!        "completion_tokens":1,"cached_tokens":0}}
//! data: {"output_ids":[504,2],"meta_info":{"finish_reason":{"type":"stop","matched":2},
//!        "completion_tokens":2,...}}
//! data: [DONE]
//! llama.cpp
//! data: {"index":0,"content":" Paris","tokens":[7042],"stop":false,"tokens_predicted":1,
//!        "tokens_evaluated":8}
//! data: {"index":0,"content":"","tokens":[],"stop":true,"stop_type":"eos","tokens_predicted":2,
//!        "tokens_evaluated":8,"truncated":false,"timings":{"cache_n":0,...}}
//! ```

use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;
use smallvec::SmallVec;

use super::trouble::{self, Trouble};
use crate::{
    error::shorten,
    llm_server::{
        account::{AnswerEvent, Finish, Tokens, lost},
        roles::handle_of,
    },
};

/// Data of the event that ends a stream.
const DONE: &str = "[DONE]";

/// Which ids of an answer an event carries, and in which form.
#[derive(Clone, Copy)]
pub(super) enum IdList {
    /// New ids, in a chunk of OpenAI's completions.
    New,
    /// New ids, or all ids of the answer: the event's count tells the two apart. A list may have
    /// more ids than its event counts, except in the last event: SGLang appends until it sends.
    NewOrAll,
    /// New ids. llama.cpp does not send an id that ends in the middle of a UTF-8 character: it
    /// waits until the character is complete, and sends only the last id, or none if the answer
    /// ends there. The event's count shows the gap.
    NewWithGaps,
}

impl IdList {
    /// Parses the data of one event. `so_far` is the count of tokens before this event.
    pub fn read(self, data: &str, so_far: usize) -> Result<AnswerEvent, Trouble> {
        let is_done = data == DONE;
        match self {
            IdList::New | IdList::NewOrAll if is_done => Ok(AnswerEvent {
                done: true,
                ..AnswerEvent::default()
            }),
            IdList::New => completion(data),
            IdList::NewOrAll => sglang(data, so_far),
            IdList::NewWithGaps => llama_cpp(data, so_far),
        }
    }
}

#[derive(Deserialize)]
struct Completion {
    #[serde(default)]
    choices: SmallVec<[Choice; 1]>,
    usage: Option<Usage>,
    #[serde(alias = "detail")]
    error: Option<Value>,
    /// In TensorRT-LLM's error responses, which have no field `error`.
    message: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice {
    token_ids: Option<Tokens>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<usize>,
    completion_tokens: Option<usize>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<usize>,
}

fn completion(data: &str) -> Result<AnswerEvent, Trouble> {
    let chunk: Completion = json(data)?;
    if let Some(error) = &chunk.error {
        return Err(trouble::parse_error(error));
    }
    if chunk.message.is_some() {
        return Err(trouble::parse_error(&json::<Value>(data)?));
    }
    let mut event = AnswerEvent::default();
    if let Some(usage) = chunk.usage {
        event.prompt = usage.prompt_tokens;
        event.completion = usage.completion_tokens;
        event.cached = usage.prompt_tokens_details.and_then(|d| d.cached_tokens);
    }
    let mut choices = chunk.choices.into_iter();
    if let Some(choice) = choices.next() {
        event.finish = choice
            .finish_reason
            .as_deref()
            // Some gateways write an empty reason for none.
            .filter(|reason| !reason.is_empty())
            .map(finish)
            .transpose()?;
        event.tokens = choice.token_ids.unwrap_or_default();
    }
    match choices.next() {
        None => Ok(event),
        Some(_) => Err(Trouble::Garbled(format!(
            "several answers to one prompt in {}",
            shorten(data)
        ))),
    }
}

/// The handle of a prefill server's answer.
pub(super) fn handle(answer: &str) -> Result<Vec<u8>, Trouble> {
    #[derive(Deserialize)]
    struct Handed {
        kv_transfer_params: Option<Value>,
    }
    let handed: Handed = json(answer)?;
    handle_of(handed.kv_transfer_params.as_ref()).map_err(Trouble::Garbled)
}

#[derive(Deserialize)]
struct SglangChunk {
    output_ids: Option<Tokens>,
    meta_info: Option<MetaInfo>,
    #[serde(alias = "detail")]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct MetaInfo {
    finish_reason: Option<SglangReason>,
    prompt_tokens: Option<usize>,
    completion_tokens: Option<usize>,
    cached_tokens: Option<usize>,
}

#[derive(Deserialize)]
struct SglangReason {
    #[serde(rename = "type")]
    kind: String,
    message: Option<Value>,
    status_code: Option<Value>,
}

impl SglangReason {
    fn finish(&self) -> Result<Finish, Trouble> {
        finish(&self.kind).map_err(|trouble| match &self.message {
            Some(message) => Trouble::Aborted {
                status: self.status_code.as_ref().and_then(trouble::status),
                words: trouble::text(message),
            },
            None => trouble,
        })
    }
}

fn sglang(data: &str, so_far: usize) -> Result<AnswerEvent, Trouble> {
    let chunk: SglangChunk = json(data)?;
    if let Some(error) = &chunk.error {
        return Err(trouble::parse_error(error));
    }
    let Some(meta) = chunk.meta_info else {
        let words = format!("no meta_info in {}", shorten(data));
        return Err(Trouble::Garbled(words));
    };
    let finish = meta.finish_reason.as_ref().map(SglangReason::finish);
    let finish = finish.transpose()?;
    let mut tokens = chunk.output_ids.unwrap_or_default();
    let completion = meta.completion_tokens;
    match completion {
        Some(all) if tokens.len() >= all => {
            if tokens.len() < so_far {
                return Err(lost(all, so_far).into());
            }
            tokens.drain(..so_far);
        }
        // The account judges an event without ids.
        Some(all) if so_far + tokens.len() != all && !tokens.is_empty() => {
            return Err(lost(all, so_far + tokens.len()).into());
        }
        _ => {}
    }
    Ok(AnswerEvent {
        tokens,
        finish,
        // Before the last event, the list may have more ids than this count.
        completion: completion.filter(|_| finish.is_some()),
        prompt: meta.prompt_tokens,
        cached: meta.cached_tokens,
        ..AnswerEvent::default()
    })
}

#[derive(Deserialize)]
struct LlamaCppChunk {
    #[serde(default)]
    tokens: Tokens,
    #[serde(default)]
    stop: bool,
    stop_type: Option<String>,
    tokens_predicted: Option<usize>,
    tokens_evaluated: Option<usize>,
    timings: Option<Timings>,
    #[serde(alias = "detail")]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Timings {
    cache_n: Option<usize>,
}

fn llama_cpp(data: &str, so_far: usize) -> Result<AnswerEvent, Trouble> {
    let chunk: LlamaCppChunk = json(data)?;
    if let Some(error) = &chunk.error {
        return Err(trouble::parse_error(error));
    }
    let finish = match chunk.stop_type.as_deref() {
        _ if !chunk.stop => None,
        Some("eos" | "word") => Some(Finish::Stop),
        Some("limit") => Some(Finish::Length),
        other => Some(finish(other.unwrap_or("none"))?),
    };
    let sent = so_far + chunk.tokens.len();
    // An answer that ends inside a character lacks its last ids.
    let counted = chunk.tokens_predicted;
    let counted = counted.filter(|_| !chunk.tokens.is_empty() || chunk.stop);
    Ok(AnswerEvent {
        unsent: counted.map(|all| all.saturating_sub(sent)),
        tokens: chunk.tokens,
        finish,
        completion: chunk.tokens_predicted.filter(|_| chunk.stop),
        prompt: chunk.tokens_evaluated.filter(|_| chunk.stop),
        cached: chunk.timings.and_then(|t| t.cache_n),
        done: chunk.stop,
    })
}

/// Parses the server's reason for an answer's end. Any other word means that the server gave the
/// answer up.
fn finish(word: &str) -> Result<Finish, Trouble> {
    match word {
        "stop" => Ok(Finish::Stop),
        "length" => Ok(Finish::Length),
        other => Err(Trouble::Aborted {
            status: None,
            words: format!("it ended the answer with `{}`", shorten(other)),
        }),
    }
}

fn json<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, Trouble> {
    serde_json::from_str(data).map_err(|e| Trouble::Garbled(format!("{e} in {}", shorten(data))))
}
