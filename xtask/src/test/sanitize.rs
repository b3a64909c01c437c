//! Unit tests of crates with `unsafe` under AddressSanitizer or ThreadSanitizer. A sanitizer
//! changes every crate, so each has a build of its own. Tests that start other programs are
//! excluded, because those programs run without a sanitizer.

use std::path::Path;
use std::process::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sanitizer {
    /// Finds memory used after release or outside its bounds, and leaks.
    Address,
    /// Finds data races. The standard library is not instrumented, so its fences may cause false
    /// reports.
    Thread,
}

impl Sanitizer {
    fn name(self) -> &'static str {
        match self {
            Sanitizer::Address => "address",
            Sanitizer::Thread => "thread",
        }
    }

    pub fn step(self) -> &'static str {
        match self {
            Sanitizer::Address => "AddressSanitizer",
            Sanitizer::Thread => "ThreadSanitizer",
        }
    }
}

/// The command that runs the tests with these names, or all, under a sanitizer.
pub fn tests(root: &Path, sanitizer: Sanitizer, filters: &[String]) -> Command {
    let machine = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = super::with(root, "test --locked --no-fail-fast --lib");
    for package in ["verbs", "qdl", "engines", "loadgen-bridge"] {
        command.args(["--package", package]);
    }
    // `--target` keeps the sanitizer out of build scripts and macros, which run at build time.
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
