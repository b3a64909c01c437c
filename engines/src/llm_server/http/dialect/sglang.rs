//! The dialect of SGLang's `/generate`; not tested with a real server.
//!
//! ```text
//! data: {"output_ids":[504],"meta_info":{"finish_reason":null,"prompt_tokens":8,
//!        "completion_tokens":1,"cached_tokens":0}}
//! data: {"output_ids":[504,2],"meta_info":{"finish_reason":{"type":"stop","matched":2},
//!        "completion_tokens":2,...}}
//! data: [DONE]
//! ```
//!
//! An event carries all ids of the answer so far, or only the new ids with
//! `--incremental-streaming-output` (`--stream-output` in older versions). `completion_tokens`
//! counts all ids, so the parser can tell the two kinds of event apart. Lists of all ids take time
//! quadratic in an answer's length; the engine warns at its start. A list may have more ids than
//! its event counts, except in the last event: the server appends until it sends the list. The
//! end id is among the ids. If the scheduler gives up, the answer ends with `{"type":"abort"}`.
//!
//! Source: SGLang's `python/sglang/srt/managers/tokenizer_manager.py` and
//! `python/sglang/srt/entrypoints/http_server.py`.

use crate::error::shorten;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    AnswerEvent, AnswerParams, Dialect, Finish, Question, ServerFacts, Tokens, openai,
    trouble::{self, Trouble},
};

pub(super) const DIALECT: Dialect = Dialect {
    path: "/generate",
    prompt: "input_ids",
    rest: |ask, max_tokens| {
        json!({
            "sampling_params": {
                "max_new_tokens": max_tokens,
                "min_new_tokens": ask.config.min_tokens.min(max_tokens),
                "temperature": ask.config.temperature,
                "ignore_eos": ask.config.ignore_eos,
                "stop_token_ids": ask.config.stop,
                "skip_special_tokens": false,
            },
            "stream": true,
        })
    },
    read,
    questions: &[
        openai::MODELS,
        Question {
            paths: &["/server_info", "/get_server_info"],
            read: server_info,
            needed: false,
        },
    ],
    without_prefix_cache: "start SGLang with --disable-radix-cache",
};

#[derive(Deserialize)]
struct Chunk {
    output_ids: Option<Tokens>,
    meta_info: Option<MetaInfo>,
    #[serde(alias = "detail")]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct MetaInfo {
    finish_reason: Option<Reason>,
    prompt_tokens: Option<usize>,
    completion_tokens: Option<usize>,
    cached_tokens: Option<usize>,
}

#[derive(Deserialize)]
struct Reason {
    #[serde(rename = "type")]
    kind: String,
    message: Option<Value>,
    status_code: Option<Value>,
}

impl Reason {
    fn finish(&self) -> Result<Finish, Trouble> {
        super::finish(&self.kind).map_err(|trouble| match &self.message {
            Some(message) => Trouble::Aborted {
                status: self.status_code.as_ref().and_then(trouble::status),
                words: trouble::text(message),
            },
            None => trouble,
        })
    }
}

fn read(data: &str, so_far: usize) -> Result<AnswerEvent, Trouble> {
    if data == openai::DONE {
        return Ok(AnswerEvent::done());
    }
    let chunk: Chunk = super::json(data)?;
    if let Some(error) = &chunk.error {
        return Err(trouble::parse_error(error));
    }
    let Some(meta) = chunk.meta_info else {
        return Err(Trouble::Garbled(format!(
            "no meta_info in {}",
            shorten(data)
        )));
    };
    let finish = meta.finish_reason.as_ref().map(Reason::finish);
    let finish = finish.transpose()?;
    let mut tokens = chunk.output_ids.unwrap_or_default();
    let completion = meta.completion_tokens;
    match completion {
        Some(all) if tokens.len() >= all => {
            if tokens.len() < so_far {
                return Err(Trouble::lost(all, so_far));
            }
            tokens.drain(..so_far);
        }
        // The account judges an event without ids.
        Some(all) if so_far + tokens.len() != all && !tokens.is_empty() => {
            return Err(Trouble::lost(all, so_far + tokens.len()));
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
struct ServerInfo {
    disable_radix_cache: Option<bool>,
    context_length: Option<usize>,
    incremental_streaming_output: Option<bool>,
    max_running_requests: Option<usize>,
    stream_output: Option<bool>,
}

fn server_info(
    body: &str,
    _ask: &AnswerParams,
    about: &mut ServerFacts,
) -> Result<(), serde_json::Error> {
    let info: ServerInfo = serde_json::from_str(body)?;
    about.prefix_cache = info.disable_radix_cache.map(|off| !off);
    about.context = about.context.or(info.context_length);
    about.at_once = info.max_running_requests;
    if info.incremental_streaming_output.or(info.stream_output) == Some(false) {
        about.notes.push(
            "SGLang sends all ids of an answer with each of its tokens: start it with \
             --incremental-streaming-output"
                .to_owned(),
        );
    }
    Ok(())
}
