//! Builds the one program that is `frontend`, `accelerator` and `qdl`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use launch::run;

use crate::cargo::{cargo, target};

/// Cargo's profile for measurements: full optimisation.
pub const RELEASE: &str = "release";
/// Cargo's profile for a first look: builds in a third of `release`'s time.
pub const QUICK: &str = "quick";

/// Limit for a release build on two slow cores.
const BUILD: Duration = Duration::from_secs(3600);

/// Builds the library `libqdl.so` of a release and returns its path. As a shared library alone:
/// cargo optimises no crate that is also a `lib` across its dependencies.
pub fn library(root: &Path) -> Result<PathBuf> {
    let mut command = cargo(root);
    command.args(["rustc", "--profile", RELEASE, "--locked"]);
    command.arg("--target-dir").arg(target(root));
    command.args(["--package", "capi", "--lib", "--crate-type", "cdylib"]);
    let status = run("cargo rustc", &mut command, BUILD)?;
    ensure!(status.success(), "the library does not build");
    Ok(target(root).join(RELEASE).join("libcapi.so"))
}

/// Builds `qdl` with cargo's `profile`, links the names of the other two programs to it, and
/// returns their folder. One program saves two links, which take minutes in `release`.
pub fn build(root: &Path, profile: &str) -> Result<PathBuf> {
    let mut command = cargo(root);
    command.args(["build", "--profile", profile, "--locked"]);
    // A configuration of cargo may name another folder.
    command.arg("--target-dir").arg(target(root));
    command.args(["--package", "qdl-cli"]);
    let status = run("cargo build", &mut command, BUILD)?;
    ensure!(status.success(), "the programs do not build");
    let folder = target(root).join(profile);
    for name in ["frontend", "accelerator"] {
        let link = folder.join(name);
        // Cargo's own program of this name is older or the same.
        let _ = fs::remove_file(&link);
        symlink("qdl", &link).with_context(|| format!("cannot write {}", link.display()))?;
    }
    Ok(folder)
}
