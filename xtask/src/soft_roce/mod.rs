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
//! * `guest` - boots, shows the output, returns the exit status
//!
//! The shell pieces that run in the guest are in `xtask/soft-roce/`;
//! everything fetched is under `.deps/soft-roce/`.

mod guest;
mod initramfs;
mod kernel;
mod packages;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

/// The tests that run when no command is given: crate and
/// test binary. Each skips itself where there is no device.
const TESTS: &[(&str, &str)] = &[
    ("verbs", "soft_roce"),
    ("qdl", "ib_soft_roce"),
    ("qdl", "ib_cluster"),
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

/// Prepares and boots the guest, runs `command` in it (without one: the RDMA
/// tests, built here first), and returns its exit status. The command's
/// folder is the repository; `QDL_RDMA_DEVICES` names the two devices.
///
/// # Errors
///
/// When preparing, building or booting fails ([`NO_GUEST`] where it is the machine's fault); a
/// command that fails is no error but a status.
pub fn run(root: &Path, command: &[String]) -> Result<i32> {
    let root = root
        .canonicalize()
        .with_context(|| format!("finding {}", root.display()))?;
    let guest = prepare(&root)?;
    if !command.is_empty() {
        return guest::run(&root, &guest, &[command.to_vec()]);
    }
    let commands: Vec<_> = TESTS
        .iter()
        .map(|(package, test)| {
            let binary = build_test(&root, package, test)?;
            // One at a time: the tests share two devices, and some of them pull the cable.
            Ok(vec![
                binary,
                "--test-threads=1".to_owned(),
                "--nocapture".to_owned(),
            ])
        })
        .collect::<Result<_>>()?;
    guest::run(&root, &guest, &commands)
}

/// Builds a test binary and returns its path.
fn build_test(root: &Path, package: &str, test: &str) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root)
        .args([
            "test",
            "--no-run",
            "--locked",
            "--message-format=json-render-diagnostics",
            "-p",
            package,
            "--test",
            test,
        ])
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo")?;
    if !output.status.success() {
        bail!("building the test {test} of {package} failed");
    }
    for line in output
        .stdout
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let message: serde_json::Value =
            serde_json::from_slice(line).context("reading cargo's messages")?;
        let is_it = message["target"]["name"] == test && message["target"]["kind"][0] == "test";
        if let (true, Some(binary)) = (is_it, message["executable"].as_str()) {
            return Ok(binary.to_owned());
        }
    }
    bail!("cargo did not say where it put the test {test} of {package}")
}
