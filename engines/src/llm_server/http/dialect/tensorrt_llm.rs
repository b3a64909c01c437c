//! The dialect of `/v1/completions` of `trtllm-serve`; not tested with a real server.
//!
//! With `detokenize: false`, the chunks carry the new ids in `token_ids` and no text. The server
//! rejects unknown fields, so a request has only fields of this API. Only with
//! `include_stop_str_in_output` is a stop id among the ids. The server reports neither its context
//! nor its vocabulary, nor whether `kv_cache_config.enable_block_reuse` is on (it is by default).
//! `prompt_tokens_details.cached_tokens` counts reused tokens.
//!
//! Source: TensorRT-LLM's `tensorrt_llm/serve/openai_protocol.py`,
//! `tensorrt_llm/serve/postprocess_handlers.py` and `docs/source/commands/trtllm-serve.rst`.

use serde_json::json;

use super::{Dialect, openai};

pub(super) const DIALECT: Dialect = Dialect {
    path: "/v1/completions",
    prompt: "prompt",
    rest: |ask, max_tokens| {
        json!({
            "model": ask.model,
            "max_tokens": max_tokens,
            "min_tokens": ask.config.min_tokens.min(max_tokens),
            "temperature": ask.config.temperature,
            "ignore_eos": ask.config.ignore_eos,
            "stop_token_ids": ask.config.stop,
            "include_stop_str_in_output": true,
            "add_special_tokens": false,
            "detokenize": false,
            "stream": true,
            "stream_options": {"include_usage": true},
        })
    },
    read: |data, _| openai::read(data),
    questions: &[openai::MODELS],
    without_prefix_cache: "start trtllm-serve with \
        `kv_cache_config: {enable_block_reuse: false}` in its options file",
};
