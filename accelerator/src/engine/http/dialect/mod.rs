//! What each server is asked, and what its words mean.
//!
//! | file | server | an answer's tokens | its end |
//! | --- | --- | --- | --- |
//! | `vllm` | vLLM, `/v1/completions` and `/inference/v1/generate` | new ids | `[DONE]` |
//! | `sglang` | SGLang, `/generate` | new ids, or all so far | `[DONE]` |
//! | `tensorrt_llm` | `trtllm-serve`, `/v1/completions` | new ids | `[DONE]` |
//! | `llama_cpp` | llama.cpp, `/completion` | new ids | `"stop": true` |
//!
//! Nothing here does any I/O: a dialect makes the body of a request, and reads one event.

mod llama_cpp;
mod openai;
mod sglang;
mod tensorrt_llm;
pub(super) mod trouble;
mod vllm;

use qdl::config;
use serde::Deserialize;
use serde_json::Value;
use smallvec::SmallVec;

use self::trouble::Trouble;

/// The ids of one event: one, or a few where the server decodes several at a time. What is longer
/// goes to the heap.
pub(super) type Tokens = SmallVec<[i32; 8]>;

/// What is asked of the server, the same for every sequence.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub model: String,
    pub temperature: f64,
    pub max_tokens: usize,
    pub min_tokens: usize,
    pub stop: Vec<u32>,
    pub ignore_eos: bool,
    pub eos: Vec<u32>,
    /// Ids in the vocabulary.
    pub vocab: usize,
    /// Ids of the longest prompt.
    pub max_prompt: usize,
}

impl Ask {
    /// True where `id` ends an answer, by what the configuration says.
    pub fn ends_with(&self, id: i32) -> bool {
        let is = |end: &u32| i64::from(*end) == i64::from(id);
        self.stop.iter().any(is) || (!self.ignore_eos && self.eos.iter().any(is))
    }
}

/// Why a server ended an answer. Where it gave one up, there is no step but [`Trouble::Aborted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// At an end of sequence, or at an id of `stop`.
    Stop,
    /// At `max_tokens`.
    Length,
}

impl Finish {
    /// By the server's word for it: any other than these two means that it gave the answer up.
    fn of(word: &str) -> Result<Self, Trouble> {
        match word {
            "stop" => Ok(Finish::Stop),
            "length" => Ok(Finish::Length),
            other => Err(Trouble::Aborted {
                status: None,
                words: format!("it ended the answer with `{}`", short(other)),
            }),
        }
    }
}

/// What one event says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Step {
    /// New ids.
    pub tokens: Tokens,
    pub finish: Option<Finish>,
    /// How many tokens the answer has, as the server counts them.
    pub completion: Option<usize>,
    /// How many the prompt had.
    pub prompt: Option<usize>,
    /// How many of those came from a prefix cache.
    pub cached: Option<usize>,
    /// Seconds in the server's own queue.
    pub queue_s: Option<f64>,
    /// Nothing follows that belongs to the answer.
    pub done: bool,
}

impl Step {
    fn done() -> Self {
        Step {
            done: true,
            ..Step::default()
        }
    }
}

/// What a server says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct About {
    /// The models it serves.
    pub models: Vec<String>,
    /// Tokens of prompt and answer together.
    pub context: Option<usize>,
    /// Ids in the vocabulary.
    pub vocab: Option<usize>,
    /// Whether it keeps prefixes of prompts.
    pub prefix_cache: Option<bool>,
    /// Sequences that it works on at once; more wait in its queue.
    pub at_once: Option<usize>,
    /// What else whoever runs it should know, each a sentence.
    pub notes: Vec<String>,
}

/// A question that is asked at the start.
pub(super) struct Question {
    /// Where; the second is tried where the server does not know the first.
    pub paths: &'static [&'static str],
    /// Takes what the answer says; `Err` where it is none.
    pub read: fn(&str, &Ask, &mut About) -> Result<(), serde_json::Error>,
    /// The start fails without an answer.
    pub needed: bool,
}

/// One way of speaking with a server.
pub(super) struct Dialect {
    /// Where answers are asked for.
    pub path: &'static str,
    /// The key of the prompt's ids in a request.
    pub prompt: &'static str,
    /// The other keys of a request for one streamed answer, of at most so many tokens.
    pub rest: fn(&Ask, usize) -> Value,
    /// Reads the data of one event of an answer that has so many tokens.
    pub read: fn(&str, usize) -> Result<Step, Trouble>,
    /// Asked at the start, once the server is ready.
    pub questions: &'static [Question],
    /// What turns its prefix cache off.
    pub without_prefix_cache: &'static str,
}

impl Dialect {
    /// The body of a request. The ids are written from where they lie: a prompt may have 100,000.
    ///
    /// # Errors
    /// None that a server can cause.
    pub fn body(
        &self,
        ask: &Ask,
        prompt: &[i32],
        max_tokens: usize,
    ) -> serde_json::Result<Vec<u8>> {
        let mut body = serde_json::to_vec(&(self.rest)(ask, max_tokens))?;
        // The closing brace of the other keys, of which each dialect has some.
        body.pop();
        body.extend_from_slice(format!(",\"{}\":", self.prompt).as_bytes());
        serde_json::to_writer(&mut body, prompt)?;
        body.push(b'}');
        Ok(body)
    }
}

/// The dialect that the configuration names.
pub(super) fn of(kind: config::Dialect) -> &'static Dialect {
    match kind {
        config::Dialect::Vllm => &vllm::COMPLETIONS,
        config::Dialect::VllmGenerate => &vllm::GENERATE,
        config::Dialect::Sglang => &sglang::DIALECT,
        config::Dialect::TensorRtLlm => &tensorrt_llm::DIALECT,
        config::Dialect::LlamaCpp => &llama_cpp::DIALECT,
    }
}

/// Reads JSON, or says what came instead.
fn json<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, Trouble> {
    serde_json::from_str(data).map_err(|e| Trouble::Garbled(format!("{e} in {}", short(data))))
}

/// The beginning of a text, for an error of one line.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 200;
    let mut line = String::new();
    for word in text.split_whitespace() {
        if line.chars().count() + word.chars().count() > MOST {
            line.extend(word.chars().take(MOST));
            line.push('…');
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}
