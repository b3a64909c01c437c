//! `cargo xtask soft-roce [-- command]`: real queue pairs without a NIC.
//!
//! Boots a guest whose kernel has soft-RoCE (`rdma_rxe`), with two devices joined by a cable, `rxa`
//! (10.9.1.1) and `rxb` (10.9.1.2), and runs a command in it. The guest's root is this machine's
//! own, read-only, under a tmpfs: what was built here runs there as it is, and nothing that it
//! writes comes back, except under `/mnt/out`.
//!
//! * `packages` - the Debian packages that this needs
//! * `kernel` - Debian's own kernel, downloaded and unpacked, not installed
//! * `initramfs` - its modules and the first program, as an archive
//! * `machine` - what the emulator pretends: one with two CPUs, or one with two NUMA nodes
//!   (`--numa`)
//! * `guest` - boots, shows the output, returns the exit status
//!
//! The shell pieces that run in the guest are in `xtask/soft-roce/`;
//! everything fetched is under `.deps/soft-roce/`.

mod guest;
mod initramfs;
mod kernel;
mod machine;
mod packages;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

pub use machine::Machine;

/// The tests that run when no command is given: crate and test binary.
const TESTS: &[(&str, &str)] = &[
    ("verbs", "soft_roce"),
    ("fabric", "ib_soft_roce"),
    ("qdl", "ib_cluster"),
    ("fabric", "ofi_soft_roce"),
];

/// What an error begins with where this machine cannot run a guest at all, as opposed to a command
/// that fails in one. What is missing stands behind it, after a colon.
pub const NO_GUEST: &str = "no soft-RoCE guest is to be had here";

/// What a guest is booted from.
#[derive(Debug)]
pub struct Guest {
    /// The kernel.
    pub kernel: PathBuf,
    /// The archive with its modules and its first program.
    pub initramfs: PathBuf,
}

/// Makes ready what a guest is booted from: installs packages (as root), downloads the kernel,
/// packs the initramfs. Does nothing when all is there.
///
/// # Errors
///
/// [`NO_GUEST`] when packages are missing and this is not root (they are named), or a download
/// fails; others when the initramfs cannot be packed.
pub fn prepare(root: &Path) -> Result<Guest> {
    if !cfg!(target_arch = "x86_64") {
        return Err(anyhow!("it is for x86_64 machines").context(NO_GUEST));
    }
    let cache = root.join(".deps/soft-roce");
    std::fs::create_dir_all(&cache).with_context(|| format!("creating {}", cache.display()))?;
    packages::ensure().context(NO_GUEST)?;
    let kernel = kernel::ensure(&cache).context(NO_GUEST)?;
    let initramfs = initramfs::ensure(&cache, &kernel, &root.join("xtask/soft-roce/init.sh"))?;
    Ok(Guest {
        kernel: kernel.image,
        initramfs,
    })
}

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
    let root = root
        .canonicalize()
        .with_context(|| format!("finding {}", root.display()))?;
    let guest = prepare(&root)?;
    if !command.is_empty() {
        return guest::run(&root, &guest, machine, &[command.to_vec()]);
    }
    if machine == Machine::TwoNodes {
        let programs = build_programs(&root)?;
        let words = ["bash", "xtask/soft-roce/numa.sh", &programs];
        return guest::run(&root, &guest, machine, &[words.map(str::to_owned).to_vec()]);
    }
    let commands: Vec<_> = TESTS
        .iter()
        .map(|(package, test)| {
            let binary = build_test(&root, package, test)?;
            // Ignored elsewhere; here are the devices. One at a time: the tests share two of them,
            // and some pull the cable.
            Ok(vec![
                binary,
                "--include-ignored".to_owned(),
                "--test-threads=1".to_owned(),
                "--nocapture".to_owned(),
            ])
        })
        .collect::<Result<_>>()?;
    guest::run(&root, &guest, machine, &commands)
}

/// Builds both programs and returns the folder that they are in.
fn build_programs(root: &Path) -> Result<String> {
    let messages = cargo(root, &["build", "-p", "frontend", "-p", "accelerator"])?;
    let is_it = |m: &Value| m["target"]["name"] == "frontend" && m["target"]["kind"][0] == "bin";
    let program =
        executable(&messages, is_it).context("cargo did not say where it put frontend")?;
    let folder = Path::new(&program).parent().unwrap_or(root);
    Ok(folder.display().to_string())
}

/// Builds a test binary and returns its path.
fn build_test(root: &Path, package: &str, test: &str) -> Result<String> {
    let messages = cargo(root, &["test", "--no-run", "-p", package, "--test", test])?;
    let is_it = |m: &Value| m["target"]["name"] == test && m["target"]["kind"][0] == "test";
    executable(&messages, is_it)
        .with_context(|| format!("cargo did not say where it put the test {test} of {package}"))
}

/// Runs cargo; its messages, as it writes them for programs.
fn cargo(root: &Path, words: &[&str]) -> Result<Vec<Value>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root)
        .args(words)
        .args(["--locked", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo")?;
    if !output.status.success() {
        bail!("cargo {} failed", words.join(" "));
    }
    let lines = output.stdout.split(|&byte| byte == b'\n');
    lines
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).context("reading cargo's messages"))
        .collect()
}

/// The file that was built of the target which `is_it` recognises.
fn executable(messages: &[Value], is_it: impl Fn(&Value) -> bool) -> Option<String> {
    let built = messages.iter().filter(|m| is_it(m));
    built
        .filter_map(|m| m["executable"].as_str())
        .next_back()
        .map(str::to_owned)
}
