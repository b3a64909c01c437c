//! Keys of `engine`, the engine and the batcher in front of it, of both configuration files.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`EngineConfig`] | the keys of `engine` |
//! | `keys` of an engine's folder | keys of single engines, such as [`TokensConfig`] |
//! | `files` | an accelerator's file with its engine |
//! | `model` | how an engine and its model go together |
//!
//! The row of an engine says which keys it has.

mod files;
mod model;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use fabric::{
    keys::{within, within_some},
    with_defaults,
};
use garde::Validate;
use qdl::config::{Findings, MAX_GPU, NicConfig, check_gpu_list, resolve};
use record::NodeRole;
use serde::{Deserialize, Serialize};

pub use files::{load_accelerator, parse_accelerator};

pub use crate::{
    llm::keys::LlmConfig,
    llm_server::{
        http::keys::{Dialect, HttpConfig},
        keys::MAX_IN_FLIGHT,
        vllm::keys::VllmConfig,
    },
    tokens::keys::TokensConfig,
};

/// Keys that every engine has.
const COMMON: [&str; 3] = ["kind", "spin_us", "gpus"];
/// Keys of an engine that gets its batches from the batcher.
pub(crate) const BATCHING: [&str; 5] = [
    "max_batch",
    "max_delay_us",
    "latency_us",
    "begin_apart_us",
    "threads",
];

/// Largest batch of any engine.
pub const MAX_BATCH: usize = 65_536;
/// Maximum simulated compute time or delay, in microseconds: one minute.
const MAX_DELAY_US: u64 = 60_000_000;
const MAX_THREADS: usize = 1024;
const MAX_OPTIMIZATION_LEVEL: u8 = 5;

/// Kind of engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

/// Where an engine's answers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerSource {
    /// The bytes of the sample, whatever they are; no model.
    AnyBytes,
    /// Settings: the engine simulates a model.
    Settings,
    /// A model file.
    File,
    /// A second program on this machine, which has the model.
    Server,
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

/// [`with_defaults`], and a method that names the fields whose value is not the default.
macro_rules! with_changed {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty $(= $default:expr)?,)*
    }) => {
        with_defaults! {
            $(#[$meta])* pub struct $name {
                $($(#[$field_meta])* pub $field: $type $(= $default)?,)*
            }
        }

        impl $name {
            fn changed(&self) -> Vec<&'static str> {
                let default = Self::default();
                let mut changed = Vec::new();
                $(if self.$field != default.$field {
                    changed.push(stringify!($field));
                })*
                changed
            }
        }
    };
}

with_changed! {
/// Engine and batcher, of an accelerator and of a frontend's `--local`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
#[garde(allow_unvalidated)]
pub struct EngineConfig {
    /// Kind of engine.
    pub kind: EngineKind = EngineKind::Null,
    /// Phase of an answer that this node computes: `prefill`, `decode`, or `both` (default).
    /// `tokens`, `vllm` and `http` only.
    pub role: NodeRole,
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
    /// The ONNX Runtime library (`onnx`); the folder of PyTorch's (`aoti`) or TensorRT's
    /// (`tensorrt`) libraries, or a file in it. Default: a search in the usual places.
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
        let source = self.kind.source();
        let waits = matches!(source, AnswerSource::Server | AnswerSource::Settings);
        let waits = waits || self.delay_us > 0;
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

    /// Describes the batching rule in one line; `None` if the engine batches by itself.
    pub fn batching(&self) -> Option<String> {
        if self.kind.streams() {
            return None;
        }
        let mut line = format!(
            "up to {} samples, {} at a time, after {} us at most",
            self.max_batch,
            self.workers(),
            self.max_delay_us
        );
        if let Some(us) = self.latency_us {
            line += &format!(", answers due after {us} us");
        }
        if !self.batch_sizes.is_empty() {
            line += &format!(", of sizes {:?}", self.batch_sizes);
        }
        if self.begin_apart_us > 0 {
            line += &format!(", begun {} us apart", self.begin_apart_us);
        }
        Some(line)
    }

    /// Returns the number of worker threads of all pipelines.
    pub fn workers(&self) -> usize {
        self.threads.saturating_mul(self.gpus.len().max(1))
    }

    /// Returns whether the GPU that a sample arrives for determines the sample's pipeline.
    fn minds_gpus(&self) -> bool {
        !self.gpus.is_empty() || self.uses_gpu()
    }

    fn uses_gpu(&self) -> bool {
        self.kind.entry().on_gpu || self.provider == Provider::Cuda
    }

    fn check_gpus(&self, out: &mut Findings<'_>) {
        let kind = self.kind.as_str();
        if self.gpu != 0 && self.kind.has("gpu") && !self.uses_gpu() {
            out.add_key(
                "engine.gpu",
                format!("engine `{kind}` uses no GPU"),
                "remove `gpu`, or set `provider: cuda`",
            );
        }
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

    /// Checks that each NIC's GPU has a pipeline and that each pipeline has a NIC.
    fn check_nics(&self, nics: &[NicConfig], out: &mut Findings<'_>) {
        if !self.minds_gpus() {
            return;
        }
        let served = self.all_gpus();
        let named: Vec<_> = nics.iter().map(|nic| nic.gpu).collect();
        for (i, gpu) in named.iter().enumerate() {
            let gpu = gpu.map(|g| g as usize);
            if let Some(gpu) = gpu.filter(|g| !served.contains(g)) {
                out.add(
                    format!("nics[{i}].gpu"),
                    format!("no engine runs on GPU {gpu}; the configuration has one on {served:?}"),
                    "list every GPU that NICs name in `engine.gpus`, as in `gpus: [0, 1]`",
                );
            }
        }
        for gpu in served {
            if !named.is_empty() && named.iter().all(|n| n.is_some_and(|n| n as usize != gpu)) {
                out.add(
                    "engine",
                    format!("GPU {gpu} gets no samples: every entry of `nics` names another one"),
                    format!("give an entry of `nics` the key `gpu: {gpu}`, or leave that GPU out"),
                );
            }
        }
    }

    /// Resolves paths relative to `base`.
    pub fn resolve(&mut self, base: &Path) {
        if let Some(library) = &mut self.library {
            resolve(base, library);
        }
        (self.kind.entry().resolve)(self, base);
    }

    /// Refuses the keys of other engines.
    fn check_keys(&self, out: &mut Findings<'_>) {
        let (kind, name) = (self.kind, self.kind.as_str());
        for key in self.changed() {
            if COMMON.contains(&key) || kind.has(key) {
                continue;
            }
            let (what, help) = if kind.streams() && BATCHING.contains(&key) {
                let help = format!("the keys below `{name}` say how many run at once");
                ("makes its own batches".to_owned(), help)
            } else {
                let other = EngineKind::with_key(key).map_or("null", EngineKind::as_str);
                (format!("has no `{key}`"), format!("or set `kind: {other}`"))
            };
            let help = format!("remove `{key}`; {help}");
            out.add_key(
                format!("engine.{key}"),
                format!("engine `{name}` {what}"),
                help,
            );
        }
    }

    /// Checks the relations between these keys.
    pub fn check(&self, out: &mut Findings<'_>) {
        if !out.has("engine.kind") {
            return out.add(
                "engine",
                "the key `kind` is missing",
                "add `kind: ...` here",
            );
        }
        self.check_gpus(out);
        self.check_keys(out);
        (self.kind.entry().check)(self, out);
    }

    /// Checks that batch sizes ascend and that the last is from `max_batch` to `most`.
    pub(crate) fn check_sizes(
        &self,
        key: &str,
        sizes: &[usize],
        most: usize,
        out: &mut Findings<'_>,
    ) {
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
