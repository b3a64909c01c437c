//! `cargo xtask soft-roce [-- command]`: real queue pairs without a NIC.
//!
//! Boots a guest whose kernel has soft-RoCE (`rdma_rxe`), with two devices joined by a cable, `rxa`
//! (10.9.1.1) and `rxb` (10.9.1.2), and runs a command in it. The guest's root is this machine's
//! own, read-only, under a tmpfs: what was built here runs there as it is, and nothing that it
//! writes comes back, except under `/mnt/out`.
//!
//! * `machine` - what the emulator pretends: one with two CPUs, or one with two NUMA nodes
//!   (`--numa`)
//! * `guest` - boots, shows the output, returns the exit status
//! * `xtask/soft-roce/prepare.sh` - packages, Debian's own kernel, and the archive that it starts
//!   from, all below `.deps/soft-roce/`; beside it are the shell pieces that run in the guest

mod guest;
mod machine;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::process::run_copying;

pub use machine::Machine;

/// The tests that run when no command is given: crate and test binary.
const TESTS: &[[&str; 2]] = &[
    ["verbs", "soft_roce"],
    ["fabric", "ib_soft_roce"],
    ["qdl", "ib_cluster"],
    ["fabric", "ofi_soft_roce"],
];

/// What an error begins with where this machine cannot run a guest at all, as opposed to a command
/// that fails in one. What is missing stands behind it, after a colon.
pub const NO_GUEST: &str = "no soft-RoCE guest is to be had here";

/// For packages and a kernel over a slow line.
const PREPARE: Duration = Duration::from_secs(1800);

/// Prepares and boots the guest, runs `command` in it, and returns its exit status. The command's
/// folder is the repository;
/// `QDL_RDMA_DEVICES` names the two devices. Without a command, what the machine is for, built here
/// first: the RDMA tests, or
/// `numa.sh`.
///
/// # Errors
///
/// When preparing, building or booting fails ([`NO_GUEST`] where it is the machine's fault); a
/// command that fails is no error but a status.
pub fn run(root: &Path, machine: Machine, command: &[String]) -> Result<i32> {
    let root = root.canonicalize();
    let root = &root.context("finding the repository")?;
    let boots = prepare(root)?;
    let commands = match machine {
        _ if !command.is_empty() => vec![command.to_vec()],
        Machine::TwoNodes => {
            let program = build(root, &["build", "-p", "frontend", "-p", "accelerator"])?;
            let folder = Path::new(&program).parent().unwrap_or(root);
            let folder = folder.display().to_string();
            let words = ["bash", "xtask/soft-roce/numa.sh", &folder];
            vec![words.map(str::to_owned).to_vec()]
        }
        Machine::Plain => {
            let test = |[package, test]: &[&str; 2]| {
                let binary = build(root, &["test", "--no-run", "-p", package, "--test", test])?;
                // Ignored elsewhere; here are the devices. One at a time: the tests share two of
                // them, and some pull the cable.
                let words = ["--include-ignored", "--test-threads=1", "--nocapture"];
                let words = words.map(str::to_owned);
                Ok([&[binary], &words[..]].concat())
            };
            TESTS.iter().map(test).collect::<Result<_>>()?
        }
    };
    guest::run(root, &boots, machine, &commands)
}

/// The folder with what a guest is booted from, made where it is missing.
fn prepare(root: &Path) -> Result<PathBuf> {
    if !cfg!(target_arch = "x86_64") {
        return Err(anyhow!("it is for x86_64 machines").context(NO_GUEST));
    }
    let cache = root.join(".deps/soft-roce");
    let mut script = Command::new("sh");
    script.arg(root.join("xtask/soft-roce/prepare.sh"));
    script.arg(&cache);
    let (status, said) = run_copying("prepare.sh", &mut script, PREPARE, true)?;
    if !status.success() {
        let last = said.trim_end().lines().last();
        let why = last.unwrap_or("prepare.sh says nothing").to_owned();
        return Err(anyhow!(why).context(NO_GUEST));
    }
    Ok(cache.join("guest"))
}

/// Has cargo build something; the last file to be run that it made.
fn build(root: &Path, words: &[&str]) -> Result<String> {
    let output = crate::process::cargo(root)
        .args(words)
        .args(["--locked", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo")?;
    if !output.status.success() {
        bail!("cargo {} failed", words.join(" "));
    }
    let messages = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    let files = messages.filter_map(|m| Some(m.ok()?["executable"].as_str()?.to_owned()));
    let last = files.last();
    last.with_context(|| format!("cargo {} made nothing that runs", words.join(" ")))
}
