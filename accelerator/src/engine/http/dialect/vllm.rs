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

use qdl::config::Temperature;
use serde::Serialize;

use super::{
    About, Ask, Dialect, Question, Step,
    openai::{self, StreamOptions, WITH_USAGE},
    trouble::Trouble,
};

/// `/v1/completions`.
pub(super) struct Completions;

#[derive(Serialize)]
struct Completion<'a> {
    model: &'a str,
    prompt: &'a [i32],
    #[serde(flatten)]
    sampling: Sampling<'a>,
    stream: bool,
    stream_options: StreamOptions,
    return_token_ids: bool,
}

#[derive(Serialize)]
struct Sampling<'a> {
    max_tokens: usize,
    min_tokens: usize,
    temperature: Temperature,
    ignore_eos: bool,
    stop_token_ids: &'a [u32],
}

impl<'a> Sampling<'a> {
    fn of(ask: &'a Ask, max_tokens: usize) -> Self {
        Sampling {
            max_tokens,
            min_tokens: ask.min_tokens.min(max_tokens),
            temperature: ask.temperature,
            ignore_eos: ask.ignore_eos,
            stop_token_ids: &ask.stop,
        }
    }
}

impl Dialect for Completions {
    fn path(&self) -> &'static str {
        "/v1/completions"
    }

    fn body(&self, ask: &Ask, prompt: &[i32], max_tokens: usize) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&Completion {
            model: &ask.model,
            prompt,
            sampling: Sampling::of(ask, max_tokens),
            stream: true,
            stream_options: WITH_USAGE,
            return_token_ids: true,
        })
    }

    fn read(&self, data: &str, _so_far: usize) -> Result<Step, Trouble> {
        openai::read(data)
    }

    fn questions(&self) -> &'static [Question] {
        &QUESTIONS
    }

    fn without_prefix_cache(&self) -> &'static str {
        WITHOUT_PREFIX_CACHE
    }
}

/// `/inference/v1/generate`.
pub(super) struct Generate;

#[derive(Serialize)]
struct Generation<'a> {
    model: &'a str,
    token_ids: &'a [i32],
    sampling_params: WithoutText<'a>,
    stream: bool,
    stream_options: StreamOptions,
}

#[derive(Serialize)]
struct WithoutText<'a> {
    #[serde(flatten)]
    sampling: Sampling<'a>,
    detokenize: bool,
}

impl Dialect for Generate {
    fn path(&self) -> &'static str {
        "/inference/v1/generate"
    }

    fn body(&self, ask: &Ask, prompt: &[i32], max_tokens: usize) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&Generation {
            model: &ask.model,
            token_ids: prompt,
            sampling_params: WithoutText {
                sampling: Sampling::of(ask, max_tokens),
                detokenize: false,
            },
            stream: true,
            stream_options: WITH_USAGE,
        })
    }

    fn read(&self, data: &str, _so_far: usize) -> Result<Step, Trouble> {
        openai::read(data)
    }

    fn questions(&self) -> &'static [Question] {
        &QUESTIONS
    }

    fn without_prefix_cache(&self) -> &'static str {
        WITHOUT_PREFIX_CACHE
    }
}

const WITHOUT_PREFIX_CACHE: &str = "start vLLM with --no-enable-prefix-caching";

const QUESTIONS: [Question; 2] = [
    Question {
        paths: &["/v1/models"],
        read: openai::models,
        needed: true,
    },
    Question {
        paths: &["/metrics"],
        read: metrics,
        needed: false,
    },
];

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
