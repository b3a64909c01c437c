//! Description of an accelerator's engine.

use serde::{Deserialize, Serialize};

use super::Content;

/// An accelerator's engine, as reported to the frontend at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineInfo {
    /// Name of the engine: 1 to [`MAX_ENGINE_NAME`] bytes.
    pub name: String,
    /// True if answers are token ids of exact length, so that the engine counts them.
    pub tokens: bool,
    /// Number of samples (over all batches) or sequences that the engine processes at once; 0 if
    /// unknown. A full engine needs more samples in flight than this.
    #[serde(default)]
    pub at_once: u64,
    /// Content; `None` if the kind alone determines the answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// State of its prefix cache; `None` if the engine cannot have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_cache: Option<PrefixCache>,
}

/// Whether an engine reuses computed prefixes for later prompts. The Network division forbids it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixCache {
    /// State of the cache.
    pub state: CacheState,
    /// Evidence for the state, or advice: at most [`MAX_CACHE_WORDS`] bytes.
    pub how: String,
}

/// State of a [`PrefixCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    /// The engine reuses nothing.
    Off,
    /// The engine reuses prefixes.
    On,
    /// The state is unknown.
    Unknown,
}

/// Maximum length of [`PrefixCache::how`], in bytes.
pub const MAX_CACHE_WORDS: usize = 512;

/// Maximum length of an engine's name, in bytes.
pub const MAX_ENGINE_NAME: usize = 64;
