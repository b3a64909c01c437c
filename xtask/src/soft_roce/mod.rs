//! `cargo xtask soft-roce [-- command]`: runs a command with real queue pairs, without a NIC.
//!
//! Boots a guest whose kernel has soft-RoCE (`rdma_rxe`). Its two devices `rxa` (10.9.1.1) and
//! `rxb` (10.9.1.2) are joined by a cable. The guest's root is this machine's, read-only, under a
//! tmpfs: programs built here run there, and only files under `/mnt/out` persist.
//!
//! * `machine` - the emulated machine: two CPUs, or two NUMA nodes (`--numa`)
//! * `guest` - boots the guest, prints its output, returns its exit status
//! * `xtask/soft-roce/prepare.sh` - fetches packages and Debian's kernel and makes the initramfs,
//!   all below `.deps/soft-roce/`; the shell scripts beside it run in the guest

mod guest;
mod machine;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use launch::run_copying;
use serde_json::Value;

pub use machine::Machine;

/// Tests that run if the user gives no command: a crate, and the filters of its binary `it`.
const TESTS: &[(&str, &[&str])] = &[
    ("fabric", &["ib::", "ofi::verbs::", "--skip", "ib::stub::"]),
    ("qdl", &["ib_cluster::"]),
];

/// Beginning of an error that says that this machine cannot run a guest at all. After a colon the
/// error names what is missing.
pub const NO_GUEST: &str = "no soft-RoCE guest is to be had here";

/// Limit for fetching packages and a kernel over a slow line.
const PREPARE: Duration = Duration::from_secs(1800);

/// Prepares and boots the guest, runs `command` in the repository's folder, and returns its exit
/// status. `QDL_RDMA_DEVICES` names the two devices. Without a command, builds and runs the RDMA
/// tests, or `numa.sh` on a machine with two nodes.
pub fn run(root: &Path, machine: Machine, command: &[String]) -> Result<i32> {
    let root = root.canonicalize();
    let root = &root.context("finding the repository")?;
    let boots = prepare(root)?;
    let commands = match machine {
        _ if !command.is_empty() => vec![command.to_vec()],
        Machine::TwoNodes => {
            let words = ["build", "-p", "frontend", "-p", "accelerator"];
            let program = build(root, &words, "accelerator")?;
            let folder = Path::new(&program).parent().unwrap_or(root);
            let folder = folder.display().to_string();
            let words = ["bash", "xtask/soft-roce/numa.sh", &folder];
            vec![words.map(str::to_owned).to_vec()]
        }
        Machine::Plain => {
            let test = |(package, filters): &(&str, &[&str])| {
                // Of one package alone, cargo would build what it needs again, with fewer features.
                let words = ["test", "--no-run", "--workspace", "--test", "it"];
                let binary = build(root, &words, package)?;
                // They run one at a time: they share two devices, and some pull the cable.
                let words = ["--include-ignored", "--test-threads=1", "--nocapture"];
                let words = filters.iter().chain(&words).map(|w| (*w).to_owned());
                Ok([binary].into_iter().chain(words).collect())
            };
            TESTS.iter().map(test).collect::<Result<_>>()?
        }
    };
    guest::run(root, &boots, machine, &commands)
}

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

/// Builds, and returns the path of the executable from the crate in folder `package`.
fn build(root: &Path, words: &[&str], package: &str) -> Result<String> {
    let output = crate::cargo::cargo(root)
        .args(words)
        .args(["--locked", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo")?;
    if !output.status.success() {
        bail!("cargo {} failed", words.join(" "));
    }
    let messages = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    let manifest = root.join(package).join("Cargo.toml");
    let files = messages.filter_map(|message| {
        let message = message.ok()?;
        let is_of_package = manifest.to_str() == message["manifest_path"].as_str();
        let file = message["executable"].as_str().filter(|_| is_of_package);
        file.map(str::to_owned)
    });
    let last = files.last();
    last.with_context(|| format!("cargo {} made nothing that runs", words.join(" ")))
}
