//! `cargo xtask test`: runs every check, and prints a table of them and one line of counts.
//!
//! A failure of format, sources or clippy ends the run. After a failed step of tests the next ones
//! still run, so one run reports all tests. A step of tests without a single test fails: neither a
//! wrong filter nor an empty build looks like success.

mod columns;
mod counts;
mod rooms;
mod sanitize;
mod steps;

use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use launch::on_path;

pub use self::sanitize::Sanitizer;
use self::steps::{Excuses, Steps, Wants};
use crate::cargo::{cargo, target};
use crate::namespaces::Namespaces;
use crate::setup::{self, Models};
use crate::soft_roce;

/// cargo-deny clones the advisory database on each machine, which needs the network.
const ADVISORIES: Excuses = &[(
    "failed to fetch advisory database",
    Some("the advisory database cannot be reached from here"),
)];

/// The step may lack its guest, which needs an x86_64 machine, packages, a kernel and memory.
const SOFT_ROCE: Excuses = &[(soft_roce::NO_GUEST, None)];

/// Limit for the guest in seconds: minutes on an idle machine, a multiple on a busy one.
const GUEST_SECONDS: &str = "1500";

/// Only one step needs TensorRT's headers and runtime.
const TENSORRT: Excuses = &[
    (
        crate::tensorrt::UNREACHABLE,
        Some("TensorRT's headers or its lean runtime cannot be fetched from here"),
    ),
    (
        crate::tensorrt::OTHER_MACHINE,
        Some("the lean runtime is for x86_64 machines"),
    ),
];

/// Runs the checks. The exit code is 1 if one failed.
pub fn run(root: &Path, quick: bool, sanitizer: Option<Sanitizer>, filters: &[String]) -> i32 {
    let mut steps = new_steps(root);
    run_steps(root, &mut steps, quick, sanitizer, filters);
    steps.close()
}

fn new_steps(root: &Path) -> Steps {
    Steps::new(target(root).join("nextest/default/junit.xml"))
}

fn run_steps(
    root: &Path,
    steps: &mut Steps,
    quick: bool,
    sanitizer: Option<Sanitizer>,
    filters: &[String],
) {
    steps.check("setup", || {
        setup::run(root, Models::Digits).map(|()| Vec::new())
    });
    if steps.failed() {
        // Without LoadGen nothing builds, and every other step would fail too.
        return;
    }
    if let Some(sanitizer) = sanitizer {
        let command = sanitize::tests(root, sanitizer, filters);
        return steps.run(sanitizer.step(), Wants::Tests, command);
    }
    if !filters.is_empty() {
        return steps.run("tests", Wants::Tests, tests(root, filters));
    }
    steps.run("format", Wants::Success, with(root, "fmt --all --check"));
    check_sources(root, steps);
    // A failure costs seconds here, and minutes later.
    if steps.failed() {
        return;
    }
    if !quick {
        let clippy = "clippy --workspace --all-targets --features fabric/testkit,qdl/stub --locked -- \
                      --deny warnings";
        steps.run("clippy", Wants::Success, with(root, clippy));
        if steps.failed() {
            return;
        }
    }
    steps.run("model scripts", Wants::Success, scripts(root));
    steps.run("tests", Wants::Tests, tests(root, filters));
    steps.run("world", Wants::Tests, new_seeds(root));
    match Namespaces::new("try", 1).map(drop) {
        Ok(()) => steps.run("namespaces", Wants::Tests, in_namespaces(root)),
        Err(why) => steps.leave("namespaces", &format!("{why:#}").replace('\n', " ")),
    }
    if !quick {
        slow_checks(root, steps);
    }
}

/// Tests of single structures in every order.
const LOOM: &str = "test --package qdl --package engines --lib \
                    --features qdl/loom,engines/loom --locked loom_";

fn slow_checks(root: &Path, steps: &mut Steps) {
    let doc_tests = with(root, "test --workspace --doc --locked");
    steps.run("doc tests", Wants::Success, doc_tests);
    let words = "doc --workspace --no-deps --document-private-items --locked";
    let mut documentation = with(root, words);
    documentation.env(
        "RUSTDOCFLAGS",
        "--deny warnings --allow rustdoc::private-intra-doc-links",
    );
    steps.run("documentation", Wants::Success, documentation);
    steps.run("loom", Wants::Tests, with(root, LOOM));
    steps.run_unless("soft-roce", Wants::Tests, SOFT_ROCE, guest(root));
    let shim = with(root, "xtask tensorrt --check");
    steps.run_unless("tensorrt", Wants::Tests, TENSORRT, shim);
    if on_path("cargo-deny") {
        let check = with(root, "deny --locked check bans licenses sources");
        steps.run("cargo-deny", Wants::Success, check);
        let advisories = with(root, "deny --locked check advisories");
        steps.run_unless("advisories", Wants::Success, ADVISORIES, advisories);
    } else {
        let why = "not installed: cargo install --locked cargo-deny";
        steps.leave("cargo-deny", why);
    }
}

/// Runs the checks that read only sources. The exit code is 1 if one failed.
pub fn sources(root: &Path) -> i32 {
    let mut steps = new_steps(root);
    check_sources(root, &mut steps);
    steps.close()
}

fn check_sources(root: &Path, steps: &mut Steps) {
    steps.check("columns", || columns::check(root));
    steps.check("rooms", || rooms::check(root));
}

/// Unit and integration tests: with cargo-nextest if installed, which runs all at once and ends
/// tests that hang; otherwise with cargo's own harness.
fn tests(root: &Path, filters: &[String]) -> Command {
    let nextest = "nextest run --workspace --locked --no-fail-fast";
    let harness = "test --workspace --lib --bins --tests --locked --no-fail-fast -- --show-output";
    let runs = on_path("cargo-nextest");
    let mut command = with(root, if runs { nextest } else { harness });
    command.args(filters);
    if std::env::var_os("NEXTEST_TEST_THREADS").is_none() {
        // Tests of processes and sockets wait for a third of their time.
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        command.env("NEXTEST_TEST_THREADS", (cores + cores / 2).to_string());
    }
    command
}

/// The frontend's `#[ignore]`d tests, which cut a network path or need a machine of their own. The
/// command uses the build of all other tests.
fn in_namespaces(root: &Path) -> Command {
    with(
        root,
        if on_path("cargo-nextest") {
            "nextest run --workspace --locked --no-fail-fast --run-ignored only \
             -E package(frontend)-binary(processes)"
        } else {
            "test --workspace --locked --no-fail-fast --test it -- --show-output --ignored faults:: topology:: \
             own_model:: submission::"
        },
    )
}

/// The world's seeds: new ones for 30 s, in CI the same ones each time. The output has the first.
/// The command uses the build of all other tests.
fn new_seeds(root: &Path) -> Command {
    with(
        root,
        if on_path("cargo-nextest") {
            "nextest run --workspace --locked --run-ignored only --no-capture \
             -E package(world)"
        } else {
            "test --workspace --locked --test seeds -- --ignored --nocapture"
        },
    )
}

/// Tests of the scripts that write models and data sets.
fn scripts(root: &Path) -> Command {
    let mut command = setup::python(root);
    command.args(["-m", "unittest", "discover", "-s", "models", "-t", "models"]);
    command
}

/// Runs this program's own `soft-roce` without cargo, so that the emulator ends with its parent.
/// `/proc/self/exe` stays valid if a build replaces the file.
fn guest(root: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("xtask").arg("soft-roce").current_dir(root);
    if std::env::var_os("QDL_GUEST_SECONDS").is_none() {
        command.env("QDL_GUEST_SECONDS", GUEST_SECONDS);
    }
    command
}

/// Cargo with these arguments, in colour on a terminal.
fn with(root: &Path, words: &str) -> Command {
    let mut command = cargo(root);
    command.args(words.split_whitespace());
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    command
}
