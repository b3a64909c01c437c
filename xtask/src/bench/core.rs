//! `bench core`: nanoseconds and allocations per operation of what decides.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;

/// Runs it. `args` are those of `qdl-bench core`.
///
/// # Errors
/// As for [`super::run`].
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    super::run_own(root, "core", args)
}
