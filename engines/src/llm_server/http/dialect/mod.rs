//! Translates between the engine and the API of each server.
//!
//! | file | server | tokens of an answer | end |
//! | --- | --- | --- | --- |
//! | `vllm` | vLLM, `/v1/completions` and `/inference/v1/generate` | new ids | `[DONE]` |
//! | `sglang` | SGLang, `/generate` | new ids, or all ids of the answer | `[DONE]` |
//! | `tensorrt_llm` | `trtllm-serve`, `/v1/completions` | new ids | `[DONE]` |
//! | `llama_cpp` | llama.cpp, `/completion` | new ids | `"stop": true` |
//!
//! No function here does I/O: a dialect makes the body of a request and parses one event.

mod llama_cpp;
mod openai;
mod sglang;
mod tensorrt_llm;
pub(super) mod trouble;
mod vllm;

use crate::config::{self, HttpConfig};
use crate::{
    error::shorten,
    llm_server::account::{Finish, Limits},
};
use serde::Deserialize;
use serde_json::Value;
use smallvec::SmallVec;

use self::trouble::Trouble;

/// The ids of one event: usually one, or a few if the server decodes several at a time. A list of
/// more than 8 ids is on the heap.
pub(super) type Tokens = SmallVec<[i32; 8]>;

/// Parameters of a request, the same for every sequence.
#[derive(Clone, Debug)]
pub(super) struct AnswerParams {
    pub config: HttpConfig,
    /// The model's name on the server.
    pub model: String,
    pub limits: Limits,
    /// Most ids in a prompt.
    pub max_prompt: usize,
}

impl AnswerParams {
    /// Parameters before the start, which learns the vocabulary.
    pub fn new(config: HttpConfig, model: &str, max_prompt: usize, max_tokens: usize) -> Self {
        let eos = config.eos.iter().filter(|_| !config.ignore_eos);
        AnswerParams {
            model: config.model.clone().unwrap_or_else(|| model.to_owned()),
            limits: Limits {
                engine: "http",
                vocab: 0,
                // The start compares it with the longest sample.
                context: usize::MAX,
                min_tokens: config.min_tokens,
                max_tokens,
                ends: config.stop.iter().chain(eos).copied().collect(),
                are_all_ends: config.ignore_eos || !config.eos.is_empty(),
            },
            max_prompt,
            config,
        }
    }
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

#[derive(Debug, Default, PartialEq)]
pub(super) struct AnswerEvent {
    pub tokens: Tokens,
    pub finish: Option<Finish>,
    pub completion: Option<usize>,
    pub prompt: Option<usize>,
    pub cached: Option<usize>,
    /// Ids of the answer so far that the server counts and does not send.
    pub unsent: Option<usize>,
    /// The answer has no further events.
    pub done: bool,
}

impl AnswerEvent {
    fn done() -> Self {
        AnswerEvent {
            done: true,
            ..AnswerEvent::default()
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ServerFacts {
    pub models: Vec<String>,
    /// Most tokens of prompt and answer together.
    pub context: Option<usize>,
    pub vocab: Option<usize>,
    pub prefix_cache: Option<bool>,
    /// Limit of concurrent sequences; further requests wait in the server's queue.
    pub at_once: Option<usize>,
    /// Further notes for the operator, one sentence each.
    pub notes: Vec<String>,
}

/// A query that the engine sends at the start.
pub(super) struct Question {
    pub paths: &'static [&'static str],
    /// Parses the response into [`ServerFacts`].
    pub read: fn(&str, &AnswerParams, &mut ServerFacts) -> Result<(), serde_json::Error>,
    /// True if the engine's start fails without a usable response.
    pub needed: bool,
}

pub(super) struct Dialect {
    /// Path of the requests for answers.
    pub path: &'static str,
    /// Key of the prompt's ids in a request.
    pub prompt: &'static str,
    /// Makes a request's body without the prompt. The `usize` limits the answer's tokens.
    pub rest: fn(&AnswerParams, usize) -> Value,
    /// Parses the data of one event. The number is the count of tokens before this event.
    pub read: fn(&str, usize) -> Result<AnswerEvent, Trouble>,
    /// Queries that the engine sends once the server is ready.
    pub questions: &'static [Question],
    /// Advice on turning the server's prefix cache off.
    pub without_prefix_cache: &'static str,
}

impl Dialect {
    /// The body of a request. Writes the ids without a copy: a prompt may have 100,000 ids.
    /// Error: a parameter cannot be written as JSON.
    pub fn body(
        &self,
        ask: &AnswerParams,
        prompt: &[u32],
        max_tokens: usize,
    ) -> serde_json::Result<Vec<u8>> {
        let mut body = serde_json::to_vec(&(self.rest)(ask, max_tokens))?;
        // Remove the closing brace after the other keys; every dialect has at least one key.
        body.pop();
        body.extend_from_slice(format!(",\"{}\":", self.prompt).as_bytes());
        serde_json::to_writer(&mut body, prompt)?;
        body.push(b'}');
        Ok(body)
    }
}

pub(super) fn of(kind: config::Dialect) -> &'static Dialect {
    match kind {
        config::Dialect::Vllm => &vllm::COMPLETIONS,
        config::Dialect::VllmGenerate => &vllm::GENERATE,
        config::Dialect::Sglang => &sglang::DIALECT,
        config::Dialect::TensorRtLlm => &tensorrt_llm::DIALECT,
        config::Dialect::LlamaCpp => &llama_cpp::DIALECT,
    }
}

fn json<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, Trouble> {
    serde_json::from_str(data).map_err(|e| Trouble::Garbled(format!("{e} in {}", shorten(data))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm_server::http::account::Account;

    #[test]
    fn the_page_shows_each_dialects_request_and_events_that_are_an_answer() {
        let params = |keys| {
            let config = json::<HttpConfig>(keys).expect("sound");
            AnswerParams::new(config, "m", 8, 64)
        };
        let mut ask = params(r#"{"min_tokens": 2, "eos": [2]}"#);
        ask.limits.vocab = 1000;
        let keys = r#"{"min_tokens": 7, "stop": [5], "temperature": 0.5, "ignore_eos": true}"#;
        let other = params(keys);
        let page = include_str!("../../../../../docs/llm-servers.md");
        let block = page.split("```text\n").find(|b| b.starts_with("vllm  "));
        let block = block.and_then(|b| b.split("```").next()).expect("a block");
        // A long line goes on behind its comma. A dialect without events has the next one's.
        let block = block.replace(",\n               ", ",");
        let (mut events, mut dialects) = (Vec::new(), 0);
        let mut request = Value::Null;
        for line in block.lines().rev() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["data:", event] if request.is_null() => events.insert(0, event),
                ["data:", event] => (events, request) = (vec![event], Value::Null),
                [name, "POST", path] => {
                    let dialect = of(json(&format!("\"{name}\"")).expect("a dialect"));
                    let body = dialect.body(&ask, &[5, 6, 7], 64).expect("JSON");
                    let body: Value = serde_json::from_slice(&body).expect("JSON");
                    assert_eq!((dialect.path, &body), (path, &request), "{name}");
                    let body = dialect.body(&other, &[5, 6, 7], 64).expect("JSON");
                    let body = String::from_utf8(body).expect("text");
                    // llama.cpp has neither a minimum nor stop ids.
                    let words = ["\":0.5", "_eos\":true", "_tokens\":7", "_ids\":[5]"];
                    let words = &words[..if name == "llama_cpp" { 2 } else { 4 }];
                    let has = |word: &&str| body.contains(*word);
                    assert!(words.iter().all(has), "{name}: {body}");
                    let (mut account, mut ids) = (Account::new(&ask.limits, 3, 64), Vec::new());
                    for event in &events {
                        let step = (dialect.read)(event, account.received()).expect(event);
                        ids.extend(account.take(step).expect(event).0);
                    }
                    assert_eq!(ids, [504, 17, 2], "{name}");
                    dialects += 1;
                }
                _ => request = json(line).expect(line),
            }
        }
        assert_eq!(dialects, 5);
    }
}
