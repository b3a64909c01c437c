//! What an accelerator says of its engine.

use serde::{Deserialize, Serialize};

/// An accelerator's engine, as it tells its frontend at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineInfo {
    /// As the engine calls itself: 1 to [`MAX_ENGINE_NAME`] bytes.
    pub name: String,
    /// Its answers are token ids at their true number, so that their count is the engine's own.
    pub tokens: bool,
}

/// Longest name of an engine, in bytes.
pub const MAX_ENGINE_NAME: usize = 64;
