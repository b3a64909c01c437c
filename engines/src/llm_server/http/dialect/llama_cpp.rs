//! The dialect of llama.cpp's `/completion`; not tested with a real server.
//!
//! ```text
//! data: {"index":0,"content":" Paris","tokens":[7042],"stop":false,"tokens_predicted":1,
//!        "tokens_evaluated":8}
//! data: {"index":0,"content":"","tokens":[],"stop":true,"stop_type":"eos","tokens_predicted":2,
//!        "tokens_evaluated":8,"truncated":false,"timings":{"cache_n":0,...}}
//! ```
//!
//! The stream has no `[DONE]`. The end of sequence is among the ids. `cache_prompt: false` turns
//! the prefix cache off for each request. A request cannot set a minimum length or stop ids. **If
//! an id ends in the middle of a UTF-8 character, the server does not send the id**: it waits until
//! the character is complete and sends only the last id. The event's count shows the gap. To a
//! prompt longer than a slot's context, the server answers with status 400.
//!
//! Source: llama.cpp's `tools/server/README.md` and `tools/server/server-context.cpp`
//! (`process_token`, `send_partial_response`).

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    AnswerEvent, AnswerParams, Dialect, Finish, Question, ServerFacts, Tokens, openai,
    trouble::{self, Trouble},
};

pub(super) const DIALECT: Dialect = Dialect {
    path: "/completion",
    prompt: "prompt",
    rest: |ask, max_tokens| {
        json!({
            "n_predict": max_tokens,
            "temperature": ask.config.temperature,
            "ignore_eos": ask.config.ignore_eos,
            "cache_prompt": false,
            "return_tokens": true,
            "stream": true,
        })
    },
    read,
    questions: &[
        openai::MODELS,
        Question {
            paths: &["/props"],
            read: props,
            needed: true,
        },
    ],
    without_prefix_cache: "its requests say `cache_prompt: false` already",
};

#[derive(Deserialize)]
struct Chunk {
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

fn read(data: &str, so_far: usize) -> Result<AnswerEvent, Trouble> {
    let chunk: Chunk = super::json(data)?;
    if let Some(error) = &chunk.error {
        return Err(trouble::parse_error(error));
    }
    let finish = match chunk.stop_type.as_deref() {
        _ if !chunk.stop => None,
        Some("eos" | "word") => Some(Finish::Stop),
        Some("limit") => Some(Finish::Length),
        other => Some(super::finish(other.unwrap_or("none"))?),
    };
    let sent = so_far + chunk.tokens.len();
    let counted = chunk
        .tokens_predicted
        .filter(|_| !chunk.tokens.is_empty() && !chunk.stop);
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

#[derive(Deserialize)]
struct Props {
    default_generation_settings: Option<Slot>,
    total_slots: Option<usize>,
}

#[derive(Deserialize)]
struct Slot {
    n_ctx: Option<usize>,
}

fn props(
    body: &str,
    _ask: &AnswerParams,
    about: &mut ServerFacts,
) -> Result<(), serde_json::Error> {
    let props: Props = serde_json::from_str(body)?;
    about.context = props.default_generation_settings.and_then(|s| s.n_ctx);
    about.prefix_cache = Some(false);
    about.at_once = props.total_slots;
    if let Some(slots) = props.total_slots {
        about.notes.push(format!(
            "llama.cpp works on {slots} sequences at once, the rest waits in its queue: \
             start it with --parallel for more"
        ));
    }
    Ok(())
}
