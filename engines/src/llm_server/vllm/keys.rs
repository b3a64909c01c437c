//! vLLM's engine core, which the engine `vllm` drives: its model, its process and its deadlines.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use fabric::{
    keys::{within, within_some},
    with_defaults,
};
use garde::Validate;
use qdl::{
    config::{Findings, check_gpu_list, core_list, resolve},
    durations,
};
use serde::{Deserialize, Serialize};

use crate::llm_server::keys::{MAX_IN_FLIGHT, MAX_S, MAX_TEMPERATURE, MAX_TOKENS, check_answers};

/// Maximum number of cores: an engine's identity on the wire has two bytes, and a node few GPUs.
const MAX_CORES: usize = 64;
const MAX_NODE: u32 = 1023;

/// Options of `vllm serve` that the engine sets itself, or that would undo what it needs.
const OWN_ARGS: [&str; 7] = [
    "--headless",
    "--data-parallel",
    "-dp",
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    "--skip-tokenizer-init",
    "--api-server-count",
];

with_defaults! {
/// vLLM's engine core of the engine `vllm`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
#[garde(allow_unvalidated)]
pub struct VllmConfig {
    /// Folder of the model, with `config.json`; required.
    pub model: PathBuf,
    /// Further options of `vllm serve`, as in `[--max-num-seqs, "512"]`.
    pub args: Vec<String>,
    /// Program that gets `serve` as its first argument; default `[vllm]`.
    pub command: Vec<String> = vec!["vllm".to_owned()],
    /// Loopback address of the handshake with a core that is started by hand; default: none, the
    /// engine starts the core.
    pub listen: Option<SocketAddr>,
    /// Number of cores, each with the whole model on its own GPUs; default 1. Dense models only.
    #[garde(custom(within(1..=MAX_CORES)))]
    pub data_parallel: usize = 1,
    /// GPUs of the cores, in CUDA's numbers; default: the GPUs that this process sees.
    pub gpus: Vec<usize>,
    /// Processors that the core may run on; default: those of `numa`, or all.
    #[garde(custom(core_list))]
    pub cpus: Option<Vec<usize>>,
    /// NUMA node of the core's memory; default: the kernel's choice.
    #[garde(custom(within_some(0..=MAX_NODE)))]
    pub numa: Option<u32>,
    /// File of environment variables for the core, one `NAME=value` in each line; its mode is 0600
    /// or 0400. Default: none.
    pub env_file: Option<PathBuf>,
    /// File for the output of the core; default `vllm.log` in the configuration's folder.
    pub log: PathBuf = PathBuf::from("vllm.log"),
    /// Sampling temperature, 0 to 2; default 0, which is greedy.
    #[garde(custom(within(0.0..=MAX_TEMPERATURE)))]
    pub temperature: f64,
    /// Maximum answer length in tokens; default: the model's output.
    #[garde(custom(within_some(1..=MAX_TOKENS)))]
    pub max_tokens: Option<usize>,
    /// Minimum answer length in tokens; default 0.
    #[garde(custom(within(0..=MAX_TOKENS)))]
    pub min_tokens: usize,
    /// Ids that end an answer, as its last token, in addition to the end of sequence.
    pub stop: Vec<u32>,
    /// `true`: the answer continues after the end of sequence, up to `max_tokens`; default false.
    pub ignore_eos: bool,
    /// Ids of the end of sequence; default: those of the model's `generation_config.json`, else of
    /// its `config.json`.
    pub eos: Option<Vec<u32>>,
    /// Number of ids in the vocabulary; default: `vocab_size` in the model's `config.json`.
    #[garde(custom(within_some(1..=MAX_TOKENS)))]
    pub vocab: Option<usize>,
    /// Maximum number of concurrent sequences of each core; default: 8 more than the core runs at
    /// once, if `args` or the core says so, else 512.
    #[garde(custom(within_some(1..=MAX_IN_FLIGHT)))]
    pub in_flight: Option<usize>,
    /// Maximum seconds without a token of a core that has sequences; default 45. It is less than a
    /// frontend's `watchdog_s`, so that this node reports the core first.
    #[garde(custom(within(1..=MAX_S)))]
    pub step_s: u64 = 45,
    /// Maximum seconds from the start until the core is ready; default 600.
    #[garde(custom(within(1..=MAX_S)))]
    pub ready_s: u64 = 600,
    /// Seconds that the core has to end before it is killed; default 20.
    #[garde(custom(within(1..=MAX_S)))]
    pub stop_s: u64 = 20,
}
}

impl VllmConfig {
    durations! {
        step from_secs step_s;
        ready from_secs ready_s;
        stop_within from_secs stop_s;
    }

    /// Resolves the paths relative to `base`. The program of `command` is searched in `PATH`.
    pub(crate) fn resolve(&mut self, base: &Path) {
        resolve(base, &mut self.log);
        if !self.model.as_os_str().is_empty() {
            resolve(base, &mut self.model);
        }
        self.env_file
            .iter_mut()
            .for_each(|file| resolve(base, file));
    }

    pub(crate) fn check(&self, out: &mut Findings<'_>) {
        if self.model.as_os_str().is_empty() {
            out.add(
                "engine.vllm",
                "the key `model` is missing",
                "add `model: FOLDER`, the folder of the model's `config.json`",
            );
        }
        let owned = |arg: &&String| OWN_ARGS.iter().any(|own| arg.starts_with(own));
        if let Some(arg) = self.args.iter().find(owned) {
            out.add(
                "engine.vllm.args",
                format!("the engine sets `{arg}` itself, or needs the contrary"),
                "remove it; the key `data_parallel` gives the number of cores",
            );
        }
        if self.command.is_empty() {
            out.add(
                "engine.vllm.command",
                "no program is named",
                "remove the key, or name a program, as in `command: [vllm]`",
            );
        }
        if let Some(listen) = self.listen.filter(|a| !a.ip().is_loopback()) {
            out.add(
                "engine.vllm.listen",
                format!("{listen} is no loopback address, and the handshake proves nothing"),
                "choose one, as in `listen: 127.0.0.1:29550`",
            );
        }
        check_gpu_list("engine.vllm.gpus", &self.gpus, out);
        let (gpus, cores) = (self.gpus.len(), self.data_parallel);
        if gpus.checked_rem(cores).is_some_and(|rest| rest > 0) {
            out.add(
                "engine.vllm.gpus",
                format!("{gpus} GPUs cannot be shared equally by {cores} cores"),
                "list as many GPUs for each core of `data_parallel`",
            );
        }
        let lengths = (self.min_tokens, self.max_tokens);
        let ends = self.stop.iter().chain(self.eos.iter().flatten());
        check_answers("vllm", lengths, self.vocab, ends, out);
    }
}
