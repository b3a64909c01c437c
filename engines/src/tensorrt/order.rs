//! The parameters for building a plan. Plain data.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Precision;

/// The parameters of the child process that builds a plan, passed as one JSON argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    pub shim: PathBuf,
    pub library: PathBuf,
    pub onnx: PathBuf,
    /// Path of the finished plan.
    pub plan: PathBuf,
    pub precision: Precision,
    /// Largest batch of each profile, ascending.
    pub profiles: Vec<usize>,
    /// TensorRT's builder optimization level, 0 to 5.
    pub optimization_level: Option<u8>,
    pub gpu: usize,
}
