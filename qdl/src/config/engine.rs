//! Configuration of the engine and of the batcher in front of it.

use std::path::{Path, PathBuf};

use garde::Validate;
use serde::{Deserialize, Serialize};

use super::{
    http::HttpConfig,
    llm::{LlmConfig, TokensConfig},
    rules::{Findings, MAX_GPU, check_gpu_list, resolve, within, within_some},
    vllm::VllmConfig,
};

const MAX_BATCH: usize = 65_536;
/// Maximum simulated compute time or delay, in microseconds: one minute.
const MAX_DELAY_US: u64 = 60_000_000;
const MAX_THREADS: usize = 1024;
const MAX_OPTIMIZATION_LEVEL: u8 = 5;

/// Kind of engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EngineKind {
    /// Answers every sample at once with zeros.
    Null,
    /// Answers with the xxh3-64 of the sample's bytes as 8 bytes little-endian. If the model's
    /// output is longer, further words follow, each the previous word plus a constant.
    Digest,
    /// Runs an ONNX model on ONNX Runtime.
    Onnx,
    /// Runs a model compiled ahead of time by PyTorch (`.pt2`), on the device of its compilation.
    Aoti,
    /// Runs a TensorRT plan, or builds one from an ONNX model, on an NVIDIA GPU.
    #[serde(rename = "tensorrt")]
    TensorRt,
    /// Simulates a language model's timing; the tokens are a hash of the prompt.
    Tokens,
    /// Sends prompts over HTTP to a language model's server on this machine.
    Http,
    /// Drives the engine core of vLLM on this machine, without its HTTP server.
    Vllm,
    /// Runs a small language model in this process on ONNX Runtime, several sequences at once.
    Llm,
}

/// Numeric precision of a plan that TensorRT builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 8-bit integers where the model has QuantizeLinear and DequantizeLinear, half precision
    /// elsewhere.
    Int8,
    /// Half precision.
    Fp16,
    /// Single precision, without TF32.
    Fp32,
}

impl Precision {
    /// Returns the precision's name in YAML.
    pub fn as_str(self) -> &'static str {
        match self {
            Precision::Int8 => "int8",
            Precision::Fp16 => "fp16",
            Precision::Fp32 => "fp32",
        }
    }
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl EngineKind {
    /// Returns whether the engine accepts any bytes and needs no model file.
    pub fn takes_any_bytes(self) -> bool {
        matches!(self, EngineKind::Null | EngineKind::Digest)
    }

    /// Returns whether the engine runs a language model, batches itself, and answers in tokens.
    pub fn streams(self) -> bool {
        matches!(
            self,
            EngineKind::Tokens | EngineKind::Http | EngineKind::Vllm | EngineKind::Llm
        )
    }

    /// Returns whether answers come from a model; other engines make them up.
    pub fn runs_a_model(self) -> bool {
        !self.takes_any_bytes() && !matches!(self, EngineKind::Tokens)
    }

    pub(super) fn reads_file(self) -> bool {
        self.runs_a_model() && !self.has_server()
    }

    /// Returns whether a second program on this machine runs the model.
    pub fn has_server(self) -> bool {
        matches!(self, EngineKind::Http | EngineKind::Vllm)
    }

    pub(crate) fn on_gpu(self) -> bool {
        matches!(self, EngineKind::Aoti | EngineKind::TensorRt)
    }

    /// Returns the kind's name in YAML.
    pub fn as_str(self) -> &'static str {
        match self {
            EngineKind::Null => "null",
            EngineKind::Digest => "digest",
            EngineKind::Onnx => "onnx",
            EngineKind::Aoti => "aoti",
            EngineKind::TensorRt => "tensorrt",
            EngineKind::Tokens => "tokens",
            EngineKind::Http => "http",
            EngineKind::Vllm => "vllm",
            EngineKind::Llm => "llm",
        }
    }
}

/// Execution provider of ONNX Runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// The CPU.
    #[default]
    Cpu,
    /// An NVIDIA GPU; requires a library built for it.
    Cuda,
}

with_defaults! {
/// Engine and batcher, of an accelerator and of a frontend's `--local`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
#[garde(allow_unvalidated)]
pub struct EngineConfig {
    /// Kind of engine.
    pub kind: EngineKind = EngineKind::Null,
    /// Maximum number of samples in a batch, 1 to 65,536; default 64.
    #[garde(custom(within(1..=MAX_BATCH)))]
    pub max_batch: usize = 64,
    /// Maximum time in microseconds that a sample waits for others while the engine is busy;
    /// default 500. An idle engine takes available samples at once.
    #[garde(custom(within(0..=MAX_DELAY_US)))]
    pub max_delay_us: u64 = 500,
    /// Worker threads, which is the number of concurrent batches; default 1.
    #[garde(custom(within(1..=MAX_THREADS)))]
    pub threads: usize = 1,
    /// Threads of ONNX Runtime within one batch, per worker; default 1. `llm`: within a step.
    #[garde(custom(within(1..=MAX_THREADS)))]
    pub intra_threads: usize = 1,
    /// The ONNX Runtime library (`onnx`), or the folder of PyTorch's (`aoti`) or TensorRT's
    /// (`tensorrt`) libraries; default: a search in the usual places.
    pub library: Option<PathBuf>,
    /// Simulated compute time in microseconds per batch; default 0. `null` and `digest` only.
    #[garde(custom(within(0..=MAX_DELAY_US)))]
    pub delay_us: u64,
    /// Microseconds that an idle worker spins before it sleeps; default 20.
    #[garde(custom(within(0..=MAX_DELAY_US)))]
    pub spin_us: u64 = 20,
    /// Execution provider of ONNX Runtime; default `cpu`. `onnx` and `llm` only.
    pub provider: Provider,
    /// Index of the GPU in CUDA; default 0. Only for an engine on a GPU.
    #[garde(custom(within(0..=MAX_GPU)))]
    pub gpu: usize,
    /// Several GPUs instead of `gpu`. Each GPU has its own pipeline with `threads` worker threads,
    /// which runs the samples of the NICs whose entry names the GPU. `null` and `digest` create as
    /// many pipelines without a GPU. Default: none.
    pub gpus: Vec<usize>,
    /// Batch sizes that the engine runs, ascending, the last equal to `max_batch`; batches between
    /// two sizes are padded. Default: any size. `aoti` and `tensorrt` only.
    pub batch_sizes: Vec<usize>,
    /// Target latency in microseconds from a sample's arrival to its answer. The batcher starts a
    /// batch early enough for its oldest sample, by the measured times of batches of its size.
    /// Default: none; only `max_delay_us` applies.
    #[garde(custom(within_some(1..=MAX_DELAY_US)))]
    pub latency_us: Option<u64>,
    /// Minimum time in microseconds between the starts of two batches of a GPU's workers; an idle
    /// engine starts at once. Default 0: a batch starts as soon as a worker is free.
    #[garde(custom(within(0..=MAX_DELAY_US)))]
    pub begin_apart_us: u64,
    /// Precision of a plan built from an ONNX model; default `fp16`. `tensorrt` only.
    pub precision: Option<Precision>,
    /// Maximum batch of each optimisation profile of a built plan, ascending, the last at least
    /// `max_batch`. TensorRT chooses kernels for these sizes. Default: one profile, `max_batch`.
    /// `tensorrt` only.
    pub profiles: Vec<usize>,
    /// Optimisation level of TensorRT's builder, 0 to 5: effort of the search for fast kernels.
    /// Default: TensorRT's own, 3. `tensorrt` only.
    #[garde(custom(within_some(0..=MAX_OPTIMIZATION_LEVEL)))]
    pub optimization_level: Option<u8>,
    /// Behaviour and timing of the simulated language model. `tokens` only.
    #[garde(dive)]
    pub tokens: Option<TokensConfig>,
    /// The server. Required for `http`, refused for other engines.
    #[garde(dive)]
    pub http: Option<HttpConfig>,
    /// vLLM's engine core. Required for `vllm`, refused for other engines.
    #[garde(dive)]
    pub vllm: Option<VllmConfig>,
    /// Settings of the language model in this process. `llm` only.
    #[garde(dive)]
    pub llm: Option<LlmConfig>,
}
}

impl EngineConfig {
    /// Returns the GPUs, one pipeline each: `gpus`, or the one GPU of `gpu`.
    pub fn all_gpus(&self) -> Vec<usize> {
        match &self.gpus[..] {
            [] => vec![self.gpu],
            several => several.to_vec(),
        }
    }

    /// Returns a warning if the computing threads exceed this machine's cores.
    pub fn too_many_threads(&self) -> Option<String> {
        let is_tokens = self.kind == EngineKind::Tokens;
        let waits = self.kind.has_server() || is_tokens || self.delay_us > 0;
        if waits || self.minds_gpus() {
            return None;
        }
        let cores = std::thread::available_parallelism().ok()?.get();
        let all = self.threads.saturating_mul(self.intra_threads);
        (all > cores).then(|| {
            format!(
                "WARNING: threads {} x intra_threads {} are {all} that compute, and there are \
                 {cores} cores: lower engine.threads or engine.intra_threads",
                self.threads, self.intra_threads
            )
        })
    }

    /// Returns the number of worker threads of all pipelines.
    pub fn workers(&self) -> usize {
        self.threads.saturating_mul(self.gpus.len().max(1))
    }

    /// Returns whether the GPU that a sample arrives for determines the sample's pipeline.
    pub(super) fn minds_gpus(&self) -> bool {
        !self.gpus.is_empty() || self.uses_gpu()
    }

    fn uses_gpu(&self) -> bool {
        self.kind.on_gpu() || self.provider == Provider::Cuda
    }

    fn check_gpus(&self, out: &mut Findings<'_>) {
        let kind = self.kind.as_str();
        if self.gpus.is_empty() {
            return;
        }
        if self.kind == EngineKind::Onnx && !self.uses_gpu() {
            out.add_key(
                "engine.gpus",
                format!("engine `{kind}` uses no GPU"),
                "remove `gpus`, or set `provider: cuda`",
            );
        } else if self.gpu != 0 {
            out.add_key(
                "engine.gpus",
                "`gpu` and `gpus` both say where the engine runs",
                "remove `gpu`",
            );
        } else {
            check_gpu_list("engine.gpus", &self.gpus, out);
        }
    }

    pub(super) fn resolve(&mut self, base: &Path) {
        if let Some(library) = &mut self.library {
            resolve(base, library);
        }
        if let Some(http) = &mut self.http {
            http.resolve(base);
        }
        if let Some(vllm) = &mut self.vllm {
            vllm.resolve(base);
        }
    }

    /// Returns why this engine does not have `key`, and the remedy; `None` if it has.
    fn lacks(&self, key: &str) -> Option<(&'static str, String)> {
        use EngineKind::{Digest, Http, Llm, Null, Onnx, TensorRt, Tokens, Vllm};
        let kind = self.kind;
        let (why, other) = match (key, kind) {
            ("threads", Http) => return None,
            ("max_batch" | "max_delay_us" | "latency_us" | "begin_apart_us" | "threads", _) => {
                let name = kind.as_str();
                let help =
                    format!("remove `{key}`; the keys below `{name}` say how many run at once");
                return kind.streams().then_some(("makes its own batches", help));
            }
            ("delay_us", Tokens) => {
                let help = "remove `delay_us`, and give `tokens: {step_us: ...}`".to_owned();
                return Some(("pretends steps, not batches", help));
            }
            ("provider", Onnx | Llm) | ("tokens", Tokens) => return None,
            ("http", Http) | ("vllm", Vllm) | ("llm", Llm) => return None,
            ("precision" | "profiles" | "optimization_level", TensorRt) => return None,
            ("delay_us", Null | Digest) => return None,
            ("gpu", _) if self.uses_gpu() => return None,
            ("batch_sizes", _) if kind.on_gpu() => return None,
            ("library" | "intra_threads", _) if kind.reads_file() => return None,
            ("provider", _) => ("has no execution providers", "onnx"),
            ("gpu", _) => ("uses no GPU", "aoti"),
            ("batch_sizes", _) => ("runs batches of any size", "aoti"),
            ("library", _) => ("uses no library", "onnx"),
            ("intra_threads", _) => ("has no threads of its own", "onnx"),
            ("delay_us", _) => ("pretends no compute", "digest"),
            ("tokens", _) => ("pretends no language model", "tokens"),
            ("http", _) => ("asks no server", "http"),
            ("vllm", _) => ("drives no engine core", "vllm"),
            ("llm", _) => ("runs no language model in this process", "llm"),
            _ => ("builds no plans", "tensorrt"),
        };
        Some((why, format!("remove `{key}`, or set `kind: {other}`")))
    }

    pub(super) fn check(&self, out: &mut Findings<'_>) {
        use EngineKind::{Http, Llm, TensorRt, Tokens, Vllm};
        let kind = self.kind;
        let is = |other| kind == other;
        if !out.document.has("engine.kind") {
            return out.add(
                "engine",
                "the key `kind` is missing",
                "add `kind: ...` here",
            );
        }
        self.check_gpus(out);
        let default = EngineConfig::default();
        for (key, set) in [
            ("max_batch", self.max_batch != default.max_batch),
            ("max_delay_us", self.max_delay_us != default.max_delay_us),
            ("latency_us", self.latency_us.is_some()),
            ("begin_apart_us", self.begin_apart_us != 0),
            ("threads", self.threads != 1),
            ("intra_threads", self.intra_threads != 1),
            ("library", self.library.is_some()),
            ("delay_us", self.delay_us != 0),
            ("provider", self.provider != Provider::Cpu),
            ("gpu", self.gpu != 0),
            ("batch_sizes", !self.batch_sizes.is_empty()),
            ("precision", self.precision.is_some()),
            ("profiles", !self.profiles.is_empty()),
            ("optimization_level", self.optimization_level.is_some()),
            ("tokens", self.tokens.is_some()),
            ("http", self.http.is_some()),
            ("vllm", self.vllm.is_some()),
            ("llm", self.llm.is_some()),
        ] {
            if let Some((why, help)) = self.lacks(key).filter(|_| set) {
                let what = format!("engine `{}` {why}", kind.as_str());
                out.add_key(format!("engine.{key}"), what, help);
            }
        }
        if is(Http) && self.http.is_none() {
            out.add(
                "engine",
                "engine `http` asks a server, and none is named",
                "add `http: {url: http://127.0.0.1:8000, dialect: vllm}`",
            );
        }
        if is(Vllm) && self.vllm.is_none() {
            out.add(
                "engine",
                "engine `vllm` drives an engine core, and none is described",
                "add `vllm: {model: FOLDER}`, the folder of the model's `config.json`",
            );
        }
        if kind.on_gpu() {
            self.check_sizes("batch_sizes", &self.batch_sizes, self.max_batch, out);
        }
        if is(TensorRt) {
            self.check_sizes("profiles", &self.profiles, MAX_BATCH, out);
        }
        if let Some(http) = self.http.as_ref().filter(|_| is(Http)) {
            http.check(out);
        }
        if let Some(vllm) = self.vllm.as_ref().filter(|_| is(Vllm)) {
            vllm.check(out);
        }
        if let Some(llm) = self.llm.as_ref().filter(|_| is(Llm)) {
            llm.check(out);
        }
        if let Some(tokens) = self.tokens.as_ref().filter(|_| is(Tokens)) {
            tokens.check(out);
        }
    }

    /// Checks that batch sizes ascend and that the last is from `max_batch` to `most`.
    fn check_sizes(&self, key: &str, sizes: &[usize], most: usize, out: &mut Findings<'_>) {
        let Some(last) = sizes.last() else { return };
        let ascend = sizes[0] > 0 && sizes.is_sorted_by(|a, b| a < b);
        if !ascend || !(self.max_batch..=most).contains(last) {
            let least = if most == self.max_batch {
                ""
            } else {
                "at least "
            };
            out.add(
                format!("engine.{key}"),
                format!("{sizes:?} with max_batch {}", self.max_batch),
                format!("list sizes ascending from 1 on; the last of them is {least}`max_batch`"),
            );
        }
    }
}
