//! vLLM, in two ways.
//!
//! * `/v1/completions` with ids as the prompt and `return_token_ids`: an event of about 240 bytes a
//!   token. Run on 0.24.0 and 0.32.
//! * `/inference/v1/generate`, tokens in and out: about 171 bytes a token. Run on 0.24.0; later
//!   versions have it behind `--enable-scale-out` and answer 403 without. It takes prompts that
//!   exceed the context, and its errors come with status 200, inside the stream.
//!
//! The headers come before the first token. With several prompts' worth of load one event may carry
//! several ids. The stop id, or the end of sequence, is among the ids. An id beyond the vocabulary
//! ends the whole server (with `--skip-tokenizer-init`: 500, then it exits).
//!
//! Sources: vLLM's `vllm/entrypoints/openai/completion/protocol.py`,
//! `vllm/entrypoints/serve/disagg/{protocol,serving}.py`, and its page *Production Metrics* for
//! `vllm:cache_config_info`.

use serde_json::{Value, json};

use super::{About, Ask, Dialect, Question, openai};

/// `/v1/completions`.
pub(super) const COMPLETIONS: Dialect = Dialect {
    path: "/v1/completions",
    prompt: "prompt",
    rest: |ask, max_tokens| {
        let mut body = sampling(ask, max_tokens);
        body["model"] = json!(ask.model);
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        body["return_token_ids"] = json!(true);
        body
    },
    read: |data, _| openai::read(data),
    questions: &[
        openai::MODELS,
        Question {
            paths: &["/metrics"],
            read: metrics,
            needed: false,
        },
    ],
    without_prefix_cache: "start vLLM with --no-enable-prefix-caching",
};

/// `/inference/v1/generate`.
pub(super) const GENERATE: Dialect = Dialect {
    path: "/inference/v1/generate",
    prompt: "token_ids",
    rest: |ask, max_tokens| {
        let mut without_text = sampling(ask, max_tokens);
        without_text["detokenize"] = json!(false);
        json!({
            "model": ask.model,
            "sampling_params": without_text,
            "stream": true,
            "stream_options": {"include_usage": true},
        })
    },
    ..COMPLETIONS
};

fn sampling(ask: &Ask, max_tokens: usize) -> Value {
    json!({
        "max_tokens": max_tokens,
        "min_tokens": ask.min_tokens.min(max_tokens),
        "temperature": ask.temperature,
        "ignore_eos": ask.ignore_eos,
        "stop_token_ids": ask.stop,
    })
}

/// The label is `True`, `False`, or in old versions `None`, which meant the version's default.
fn metrics(body: &str, _ask: &Ask, about: &mut About) -> Result<(), serde_json::Error> {
    let info = body
        .lines()
        .find(|line| line.starts_with("vllm:cache_config_info{"));
    about.prefix_cache = info.and_then(|line| {
        let label = |value: &str| line.contains(&format!("enable_prefix_caching=\"{value}\""));
        (label("True") || label("False")).then(|| label("True"))
    });
    Ok(())
}
