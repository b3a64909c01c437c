//! Parses the chunks of OpenAI's completions with ids, for vLLM and `trtllm-serve`.
//!
//! ```text
//! data: {"choices":[{"index":0,"text":"","token_ids":[504],"finish_reason":null}]}
//! data: {"choices":[{"index":0,"text":"","token_ids":[2],"finish_reason":"stop"}]}
//! data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":2}}
//! data: [DONE]
//! ```

use crate::error::shorten;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;
use smallvec::SmallVec;

use super::{
    AnswerEvent, AnswerParams, Question, ServerFacts, Tokens, json,
    trouble::{self, Trouble},
};

/// Data of the event that ends a stream.
pub(super) const DONE: &str = "[DONE]";

pub(super) const MODELS: Question = Question {
    paths: &["/v1/models"],
    read: models,
    needed: true,
};

#[derive(Deserialize)]
struct Chunk {
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

pub(super) fn read(data: &str) -> Result<AnswerEvent, Trouble> {
    if data == DONE {
        return Ok(AnswerEvent::done());
    }
    let chunk: Chunk = json(data)?;
    if let Some(error) = &chunk.error {
        return Err(trouble::parse_error(error));
    }
    if chunk.message.is_some() {
        return Err(trouble::parse_error(&json::<Value>(data)?));
    }
    let mut step = AnswerEvent::default();
    if let Some(usage) = chunk.usage {
        step.prompt = usage.prompt_tokens;
        step.completion = usage.completion_tokens;
        step.cached = usage.prompt_tokens_details.and_then(|d| d.cached_tokens);
    }
    let mut choices = chunk.choices.into_iter();
    if let Some(choice) = choices.next() {
        step.finish = choice
            .finish_reason
            .as_deref()
            // Some gateways write an empty reason for none.
            .filter(|reason| !reason.is_empty())
            .map(super::finish)
            .transpose()?;
        step.tokens = choice.token_ids.unwrap_or_default();
    }
    if choices.next().is_some() {
        return Err(Trouble::Garbled(format!(
            "several answers to one prompt in {}",
            shorten(data)
        )));
    }
    Ok(step)
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    /// The context in tokens; vLLM and SGLang send this field.
    max_model_len: Option<usize>,
    /// llama.cpp sends this field.
    meta: Option<Meta>,
}

#[derive(Deserialize)]
struct Meta {
    n_vocab: Option<usize>,
}

/// Parses the response to `/v1/models`, which every supported server has.
fn models(
    body: &str,
    ask: &AnswerParams,
    about: &mut ServerFacts,
) -> Result<(), serde_json::Error> {
    let models: Models = serde_json::from_str(body)?;
    let ours = models.data.iter().find(|m| m.id == ask.model);
    if let Some(model) = ours.or(models.data.first()) {
        about.context = model.max_model_len.or(about.context);
        let vocab = model.meta.as_ref().and_then(|m| m.n_vocab);
        about.vocab = vocab.or(about.vocab);
    }
    about.models = models.data.into_iter().map(|m| m.id).collect();
    Ok(())
}
