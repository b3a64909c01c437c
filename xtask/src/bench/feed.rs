//! `cargo xtask bench feed`: what a frontend's software can feed to 1 to 32 NICs.
//!
//! The program is `target/release/qdl-bench` and needs nothing beside it: copied to a machine
//! without cargo, `qdl-bench feed` measures there.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;

/// Builds it with LoadGen, runs it, and writes `target/bench/feed.json`.
///
/// # Errors
/// It cannot be built, or failed.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    super::run_own_with(root, "feed", args, &["--features", "feed"])
}
