//! `bench rails`: choosing rails by health, in a model, and the cost of a decision.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;

/// Runs it. `args` are those of `qdl-bench rails`.
///
/// # Errors
/// As for [`super::run`].
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    super::run_own(root, "rails", args)
}
