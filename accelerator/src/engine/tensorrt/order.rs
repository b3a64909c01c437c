//! What plan is to be built, and from what. Plain data.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Precision;

/// What the child is told: one argument of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    pub shim: PathBuf,
    pub library: PathBuf,
    pub onnx: PathBuf,
    /// Where the finished plan goes.
    pub plan: PathBuf,
    pub precision: Precision,
    /// Largest batch of each profile, ascending.
    pub profiles: Vec<usize>,
    /// How hard to look for fast kernels, 0 to 5.
    pub optimization_level: Option<u8>,
    pub gpu: usize,
    /// Scratch memory that kernels may want.
    pub workspace: u64,
}
