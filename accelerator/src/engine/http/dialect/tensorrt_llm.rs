//! The `/v1/completions` of `trtllm-serve`: not run here.
//!
//! With `detokenize: false` the chunks carry `token_ids`, the new ones, and no text. Fields that it
//! does not know are an error, so nothing is sent that its request has not. A stop id is kept only
//! with `include_stop_str_in_output`. It says neither its context nor its vocabulary nor whether it
//! keeps blocks of earlier prompts (`kv_cache_config.enable_block_reuse`, on by default); what it
//! took from there is in `prompt_tokens_details.cached_tokens`, and is counted.
//!
//! Source: TensorRT-LLM's `tensorrt_llm/serve/openai_protocol.py`,
//! `tensorrt_llm/serve/postprocess_handlers.py` and `docs/source/commands/trtllm-serve.rst`.

use qdl::config::Temperature;
use serde::Serialize;

use super::{
    Ask, Dialect, Question, Step,
    openai::{self, StreamOptions, WITH_USAGE},
    trouble::Trouble,
};

/// See the module.
pub(super) struct TensorRtLlm;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    prompt: &'a [i32],
    max_tokens: usize,
    min_tokens: usize,
    temperature: Temperature,
    ignore_eos: bool,
    stop_token_ids: &'a [u32],
    include_stop_str_in_output: bool,
    add_special_tokens: bool,
    detokenize: bool,
    stream: bool,
    stream_options: StreamOptions,
}

impl Dialect for TensorRtLlm {
    fn path(&self) -> &'static str {
        "/v1/completions"
    }

    fn body(&self, ask: &Ask, prompt: &[i32], max_tokens: usize) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&Body {
            model: &ask.model,
            prompt,
            max_tokens,
            min_tokens: ask.min_tokens.min(max_tokens),
            temperature: ask.temperature,
            ignore_eos: ask.ignore_eos,
            stop_token_ids: &ask.stop,
            include_stop_str_in_output: true,
            add_special_tokens: false,
            detokenize: false,
            stream: true,
            stream_options: WITH_USAGE,
        })
    }

    fn read(&self, data: &str, _so_far: usize) -> Result<Step, Trouble> {
        openai::read(data)
    }

    fn questions(&self) -> &'static [Question] {
        const {
            &[Question {
                paths: &["/v1/models"],
                read: openai::models,
                needed: true,
            }]
        }
    }

    fn without_prefix_cache(&self) -> &'static str {
        "start trtllm-serve with `kv_cache_config: {enable_block_reuse: false}` in its options file"
    }
}
