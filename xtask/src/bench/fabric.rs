//! `bench fabric`: the TCP fabric beside plain sockets, in the same run, in turns.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;

/// Runs it. `args` are those of `qdl-bench fabric`.
///
/// # Errors
/// As for [`super::run`].
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    super::run_own(root, "fabric", args)
}
