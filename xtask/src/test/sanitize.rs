//! The tests of every crate with `unsafe` under AddressSanitizer and
//! ThreadSanitizer, built apart: each flag changes every crate. Unit tests
//! only; what runs other programs would run them without a sanitizer.

use std::path::Path;
use std::process::Command;

/// A sanitizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sanitizer {
    /// Memory used after it is freed, or beyond its bounds; memory never freed.
    Address,
    /// Memory that two threads touch with nothing between them. The standard library is not
    /// instrumented: what it orders by itself, as fences do, may be reported though it is right.
    Thread,
}

impl Sanitizer {
    fn name(self) -> &'static str {
        match self {
            Sanitizer::Address => "address",
            Sanitizer::Thread => "thread",
        }
    }

    /// The step's name.
    pub fn step(self) -> &'static str {
        match self {
            Sanitizer::Address => "AddressSanitizer",
            Sanitizer::Thread => "ThreadSanitizer",
        }
    }
}

/// The tests under a sanitizer: those of these names, or all.
pub fn tests(root: &Path, sanitizer: Sanitizer, filters: &[String]) -> Command {
    let machine = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = super::with(root, "test --locked --no-fail-fast --lib");
    for package in ["verbs", "qdl", "accelerator", "loadgen-bridge"] {
        command.args(["--package", package]);
    }
    // A build script or a macro must not be instrumented, and is not where a target is named.
    command.args(["--target", &machine, "--target-dir"]);
    command.arg(format!("target/{}", sanitizer.name()));
    command.arg("--").args(filters);
    let mut flags = format!("-Zsanitizer={}", sanitizer.name());
    if sanitizer == Sanitizer::Thread {
        flags += " -Cunsafe-allow-abi-mismatch=sanitizer";
    }
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", flags);
    command
}
