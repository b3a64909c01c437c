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
}

/// Longest name of an engine, in bytes.
pub const MAX_ENGINE_NAME: usize = 64;
