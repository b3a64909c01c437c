//! What an accelerator says of its engine.

use serde::{Deserialize, Serialize};

use super::Content;

/// An accelerator's engine, as it tells its frontend at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineInfo {
    /// As the engine calls itself: 1 to [`MAX_ENGINE_NAME`] bytes.
    pub name: String,
    /// Its answers are token ids at their true number, so that their count is the engine's own.
    pub tokens: bool,
    /// Samples that it works on at once, in all its batches together, or sequences; 0 where it does
    /// not say. So many and some more have to be in flight for it to be full.
    #[serde(default)]
    pub at_once: u64,
    /// What it really runs; `None` where its answers follow from nothing but its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// What it keeps of one sample's prompt for others; `None` where it has nothing that could.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_cache: Option<PrefixCache>,
}

/// Whether an engine keeps what it computed of a prompt for later prompts that begin like it. The
/// Network division forbids it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixCache {
    /// It does, or not.
    pub state: CacheState,
    /// By what that is known, or what to do about it: at most [`MAX_CACHE_WORDS`] bytes.
    pub how: String,
}

/// See [`PrefixCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    /// It keeps nothing.
    Off,
    /// It does.
    On,
    /// Nobody says.
    Unknown,
}

/// Longest [`PrefixCache::how`], in bytes.
pub const MAX_CACHE_WORDS: usize = 512;

/// Longest name of an engine, in bytes.
pub const MAX_ENGINE_NAME: usize = 64;
