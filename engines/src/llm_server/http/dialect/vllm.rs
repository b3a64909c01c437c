//! The two dialects of vLLM.
//!
//! * `/v1/completions` with ids as the prompt and `return_token_ids`: events of about 240 bytes per
//!   token. Tested with 0.24.0 and 0.32.
//! * `/inference/v1/generate`, tokens in and out: about 171 bytes per token. Tested with 0.24.0;
//!   later versions answer 403 without `--enable-scale-out`. This path accepts prompts longer than
//!   the context, and sends errors inside a stream of status 200.
//!
//! The headers arrive before the first token. Under load, one event may carry several ids. The stop
//! id, or the end of sequence, is among the ids. If a prompt has an id outside the vocabulary, the
//! whole server ends (with `--skip-tokenizer-init`: status 500, then exit).
//!
//! Sources: vLLM's `vllm/entrypoints/openai/completion/protocol.py`,
//! `vllm/entrypoints/serve/disagg/{protocol,serving}.py`, and its page *Production Metrics* for
//! `vllm:cache_config_info`.

use serde_json::{Value, json};

use super::{AnswerParams, Dialect, Question, ServerFacts, openai};

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

fn sampling(ask: &AnswerParams, max_tokens: usize) -> Value {
    json!({
        "max_tokens": max_tokens,
        "min_tokens": ask.config.min_tokens.min(max_tokens),
        "temperature": ask.config.temperature,
        "ignore_eos": ask.config.ignore_eos,
        "stop_token_ids": ask.config.stop,
    })
}

/// Reads the prefix cache's label in the metrics: `True`, `False`, or `None` in old versions.
fn metrics(
    body: &str,
    _ask: &AnswerParams,
    about: &mut ServerFacts,
) -> Result<(), serde_json::Error> {
    let info = body
        .lines()
        .find(|line| line.starts_with("vllm:cache_config_info{"));
    about.prefix_cache = info.and_then(|line| {
        let label = |value: &str| line.contains(&format!("enable_prefix_caching=\"{value}\""));
        (label("True") || label("False")).then(|| label("True"))
    });
    Ok(())
}
