//! What runs the samples: the engine and the batcher in front of it.

use std::path::PathBuf;

use garde::Validate;
use serde::{Deserialize, Serialize};

use super::rules::{Findings, within};

/// Default of [`EngineConfig::max_batch`].
pub const DEFAULT_MAX_BATCH: usize = 64;
/// Default of [`EngineConfig::max_delay_us`].
pub const DEFAULT_MAX_DELAY_US: u64 = 500;
/// Default of [`EngineConfig::threads`].
pub const DEFAULT_THREADS: usize = 1;
/// Default of [`EngineConfig::intra_threads`].
pub const DEFAULT_INTRA_THREADS: usize = 1;
/// Default of [`EngineConfig::delay_us`].
pub const DEFAULT_DELAY_US: u64 = 0;
/// Default of [`EngineConfig::spin_us`].
pub const DEFAULT_ENGINE_SPIN_US: u64 = 20;

/// Largest batch, in samples.
const MAX_BATCH: usize = 65_536;
/// Longest pretended compute or delay, in microseconds: one minute.
const MAX_DELAY_US: u64 = 60_000_000;
/// Most worker threads.
const MAX_THREADS: usize = 1024;

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EngineKind {
    /// Answers at once with zeros, whatever came.
    Null,
    /// Answers with the xxh3-64 of the sample's bytes, 8 bytes little-endian.
    Digest,
    /// Runs an ONNX model on ONNX Runtime.
    Onnx,
}

impl EngineKind {
    /// True for the engines that take any bytes and need no model file.
    pub fn takes_any_bytes(self) -> bool {
        matches!(self, EngineKind::Null | EngineKind::Digest)
    }

    /// As YAML spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            EngineKind::Null => "null",
            EngineKind::Digest => "digest",
            EngineKind::Onnx => "onnx",
        }
    }
}

/// Engine and batcher: the same for an accelerator and for a frontend's `--local`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// Which engine.
    #[garde(skip)]
    pub kind: EngineKind,
    /// Most samples in a batch, 1 to 65,536; default 64.
    #[serde(default = "max_batch")]
    #[garde(custom(within(1..=MAX_BATCH)))]
    pub max_batch: usize,
    /// Longest time in microseconds that a sample waits for company while the engine is busy; default 500.
    /// An idle engine takes what is there at once.
    #[serde(default = "max_delay_us")]
    #[garde(custom(within(0..=MAX_DELAY_US)))]
    pub max_delay_us: u64,
    /// Worker threads, which is also how many batches run at the same time; default 1.
    #[serde(default = "threads")]
    #[garde(custom(within(1..=MAX_THREADS)))]
    pub threads: usize,
    /// Threads of ONNX Runtime inside one batch, per worker; default 1.
    #[serde(default = "intra_threads")]
    #[garde(custom(within(1..=MAX_THREADS)))]
    pub intra_threads: usize,
    /// The ONNX Runtime library; without it the usual places are searched. `onnx` only.
    #[serde(default)]
    #[garde(skip)]
    pub library: Option<PathBuf>,
    /// Pretended compute in microseconds per batch, for tests; default 0. `null` and `digest` only.
    #[serde(default = "delay_us")]
    #[garde(custom(within(0..=MAX_DELAY_US)))]
    pub delay_us: u64,
    /// Microseconds that an idle worker spins before it sleeps; default 20.
    #[serde(default = "spin_us")]
    #[garde(custom(within(0..=MAX_DELAY_US)))]
    pub spin_us: u64,
}

fn max_batch() -> usize {
    DEFAULT_MAX_BATCH
}
fn max_delay_us() -> u64 {
    DEFAULT_MAX_DELAY_US
}
fn threads() -> usize {
    DEFAULT_THREADS
}
fn intra_threads() -> usize {
    DEFAULT_INTRA_THREADS
}
fn delay_us() -> u64 {
    DEFAULT_DELAY_US
}
fn spin_us() -> u64 {
    DEFAULT_ENGINE_SPIN_US
}

impl EngineConfig {
    /// An engine of this kind with every default.
    pub fn new(kind: EngineKind) -> Self {
        EngineConfig {
            kind,
            max_batch: DEFAULT_MAX_BATCH,
            max_delay_us: DEFAULT_MAX_DELAY_US,
            threads: DEFAULT_THREADS,
            intra_threads: DEFAULT_INTRA_THREADS,
            library: None,
            delay_us: DEFAULT_DELAY_US,
            spin_us: DEFAULT_ENGINE_SPIN_US,
        }
    }

    pub(super) fn relations(&self, out: &mut Findings) {
        let kind = self.kind.as_str();
        if self.kind.takes_any_bytes() {
            if self.library.is_some() {
                out.add(
                    "engine.library",
                    format!("engine `{kind}` uses no library"),
                    "remove `library`, or set `kind: onnx`",
                );
            }
            if self.intra_threads != DEFAULT_INTRA_THREADS {
                out.add(
                    "engine.intra_threads",
                    format!("engine `{kind}` has no threads of its own"),
                    "remove `intra_threads`, or set `kind: onnx`",
                );
            }
        } else if self.delay_us != DEFAULT_DELAY_US {
            out.add(
                "engine.delay_us",
                format!("engine `{kind}` pretends no compute"),
                "remove `delay_us`, or set `kind: digest`",
            );
        }
    }
}
