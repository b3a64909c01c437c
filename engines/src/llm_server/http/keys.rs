//! The server of the engine `http`: its address, its protocol and its deadlines.

use std::path::{Path, PathBuf};

use fabric::{
    keys::{within, within_some},
    with_defaults,
};
use garde::Validate;
use qdl::{
    config::{Findings, MAX_MS, resolve},
    durations,
};
use record::NodeRole;
use serde::{Deserialize, Serialize};

use crate::llm_server::keys::{MAX_IN_FLIGHT, MAX_S, MAX_TEMPERATURE, MAX_TOKENS, check_answers};

/// Maximum length of `prefix_cache_off` in bytes: the text is sent to frontends.
const MAX_OFF: usize = 256;

/// Protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// vLLM's `/v1/completions`.
    Vllm,
    /// vLLM's `/inference/v1/generate`.
    VllmGenerate,
    /// SGLang's `/generate`.
    Sglang,
    /// The `/v1/completions` of `trtllm-serve`.
    #[serde(rename = "tensorrt_llm")]
    TensorRtLlm,
    /// llama.cpp's `/completion`.
    LlamaCpp,
}

impl Dialect {
    /// All dialects.
    pub const ALL: [Dialect; 5] = [
        Dialect::Vllm,
        Dialect::VllmGenerate,
        Dialect::Sglang,
        Dialect::TensorRtLlm,
        Dialect::LlamaCpp,
    ];

    #[cfg(test)]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Dialect::Vllm => "vllm",
            Dialect::VllmGenerate => "vllm_generate",
            Dialect::Sglang => "sglang",
            Dialect::TensorRtLlm => "tensorrt_llm",
            Dialect::LlamaCpp => "llama_cpp",
        }
    }
}

with_defaults! {
/// The server of the engine `http`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
#[garde(allow_unvalidated)]
pub struct HttpConfig {
    /// The server's address, as in `http://127.0.0.1:8000`; no TLS, no path.
    pub url: String,
    /// The server's protocol.
    pub dialect: Dialect = Dialect::Vllm,
    /// The model's name on the server; default: its name in this file.
    pub model: Option<String>,
    /// Sampling temperature, 0 to 2; default 0, which is greedy.
    #[garde(custom(within(0.0..=MAX_TEMPERATURE)))]
    pub temperature: f64,
    /// Maximum answer length in tokens; default: the model's output.
    #[garde(custom(within_some(1..=MAX_TOKENS)))]
    pub max_tokens: Option<usize>,
    /// Minimum answer length in tokens; default 0.
    #[garde(custom(within(0..=MAX_TOKENS)))]
    pub min_tokens: usize,
    /// Ids that end an answer, as its last token, in addition to the server's end of sequence.
    pub stop: Vec<u32>,
    /// `true`: the answer continues after the end of sequence, up to `max_tokens`; default false.
    pub ignore_eos: bool,
    /// Ids of the end of sequence. Each answer that the server reports as ended must hold such an
    /// id. Default: none, and no check.
    pub eos: Vec<u32>,
    /// Number of ids in the vocabulary, required if the server does not report one. The engine
    /// refuses ids beyond the vocabulary.
    #[garde(custom(within_some(1..=MAX_TOKENS)))]
    pub vocab: Option<usize>,
    /// Maximum tokens of prompt and answer together, if the server reports no maximum.
    #[garde(custom(within_some(1..=MAX_TOKENS)))]
    pub context: Option<usize>,
    /// Maximum number of concurrent requests; default: 8 more than the server reports to process at
    /// once, or 512 without a report.
    #[garde(custom(within_some(1..=MAX_IN_FLIGHT)))]
    pub in_flight: Option<usize>,
    /// Limit in milliseconds to connect, and for answers to requests at the start; default 5000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub connect_ms: u64 = 5000,
    /// Maximum seconds from a request to its first token while no stream delivers tokens; default
    /// 45. A retry on a silent server adds ten seconds. The sum is less than a frontend's
    /// `watchdog_s`, so that this node reports the server first.
    #[garde(custom(within(1..=MAX_S)))]
    pub first_token_s: u64 = 45,
    /// Maximum seconds between two tokens; default 30.
    #[garde(custom(within(1..=MAX_S)))]
    pub next_token_s: u64 = 30,
    /// Maximum seconds of retries on a server that reports to be busy, while no stream delivers
    /// tokens; default 30.
    #[garde(custom(within(1..=MAX_S)))]
    pub busy_s: u64 = 30,
    /// Maximum seconds from the start until the server is ready; default 600.
    #[garde(custom(within(1..=MAX_S)))]
    pub ready_s: u64 = 600,
    /// How the server's prefix cache was turned off, if the server does not report it. Default:
    /// none, and the run counts in no submission.
    pub prefix_cache_off: Option<String>,
    /// Program and arguments to start as the server; default: none, the server runs already.
    pub command: Vec<String>,
    /// File of environment variables for the program of `command`, one `NAME=value` in each line;
    /// its mode is 0600 or 0400. Default: none.
    pub env_file: Option<PathBuf>,
    /// File for the output of `command`; default `llm-server.log` in the configuration's folder.
    pub log: PathBuf = PathBuf::from("llm-server.log"),
    /// Seconds that the program of `command` has to end before it is killed; default 10.
    #[garde(custom(within(1..=MAX_S)))]
    pub stop_s: u64 = 10,
}
}

impl HttpConfig {
    /// Creates the configuration of a running server, with all defaults.
    pub fn new(url: &str, dialect: Dialect) -> Self {
        HttpConfig {
            url: url.to_owned(),
            dialect,
            ..HttpConfig::default()
        }
    }

    durations! {
        connect from_millis connect_ms;
        first_token from_secs first_token_s;
        next_token from_secs next_token_s;
        busy from_secs busy_s;
        ready from_secs ready_s;
        stop_within from_secs stop_s;
    }

    /// Resolves the paths relative to `base`. The program of `command` is searched in `PATH`.
    pub(crate) fn resolve(&mut self, base: &Path) {
        resolve(base, &mut self.log);
        self.env_file
            .iter_mut()
            .for_each(|file| resolve(base, file));
    }

    pub(crate) fn check(&self, role: NodeRole, out: &mut Findings<'_>) {
        if !role.is_both() && self.dialect != Dialect::Vllm {
            out.add(
                "engine.role",
                "only the dialect `vllm` hands a KV cache over",
                "use `dialect: vllm`, or remove `role`",
            );
        }
        for (key, example) in [("url", "http://127.0.0.1:8000"), ("dialect", "vllm")] {
            if !out.has(&format!("engine.http.{key}")) {
                out.add(
                    "engine.http",
                    format!("the key `{key}` is missing"),
                    format!("add `{key}: {example}` here"),
                );
            }
        }
        let rest = self.url.strip_prefix("http://").unwrap_or_default();
        if rest.trim_end_matches('/').is_empty() || rest.trim_end_matches('/').contains('/') {
            out.add(
                "engine.http.url",
                format!("`{}` is no address of a server on this machine", self.url),
                "write it as in `url: http://127.0.0.1:8000`, without a path and without TLS",
            );
        }
        let lengths = (self.min_tokens, self.max_tokens);
        let ends = self.stop.iter().chain(&self.eos);
        check_answers("http", lengths, self.vocab, ends, out);
        if let Some(off) = &self.prefix_cache_off
            && (off.trim().is_empty()
                || off.len() > MAX_OFF
                || off.chars().any(record::is_unprintable))
        {
            out.add(
                "engine.http.prefix_cache_off",
                format!("{} bytes; it must be one line of 1 to {MAX_OFF}", off.len()),
                "say how it was turned off, as in `started with --no-enable-prefix-caching`",
            );
        }
        if self.env_file.is_some() && self.command.is_empty() {
            out.add(
                "engine.http.env_file",
                "there is no `command` that would get these variables",
                "add `command`, or set the variables where the server is started",
            );
        }
        if self.dialect == Dialect::LlamaCpp {
            for (key, set) in [
                ("min_tokens", self.min_tokens > 0),
                ("stop", !self.stop.is_empty()),
            ] {
                if set {
                    out.add_key(
                        format!("engine.http.{key}"),
                        format!("llama.cpp's server cannot be asked for `{key}`"),
                        format!("remove `{key}`, or choose another server"),
                    );
                }
            }
        }
    }
}
