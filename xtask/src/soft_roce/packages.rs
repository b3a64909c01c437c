//! The Debian packages that the guest needs on this machine.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The emulator, the guest's first shell, what unpacks a kernel, and the RDMA tools and libraries
/// that the guest finds on this machine's root.
const PACKAGES: &[&str] = &[
    "qemu-system-x86",
    "busybox-static",
    "xz-utils",
    "iproute2",
    "libibverbs1",
    "ibverbs-providers",
];

/// Installs what is missing, when this is root.
///
/// # Errors
///
/// Names what is missing when this is not root.
pub fn ensure() -> Result<()> {
    let missing: Vec<_> = PACKAGES
        .iter()
        .copied()
        .filter(|package| !is_installed(package))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let install = format!(
        "apt-get install --no-install-recommends {}",
        missing.join(" ")
    );
    if !is_root() {
        bail!("the soft-RoCE guest needs packages that are not installed; as root: {install}");
    }
    println!("soft-roce: {install}");
    apt_get(&["update", "-qq"])?;
    let mut arguments = vec![
        "install",
        "-y",
        "-qq",
        "--no-install-recommends",
        "-o",
        "DPkg::Lock::Timeout=120",
    ];
    arguments.extend(&missing);
    apt_get(&arguments)
}

/// Runs apt-get, quietly unless it fails.
pub fn apt_get(arguments: &[&str]) -> Result<()> {
    let output = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .context("running apt-get: is this Debian?")?;
    if !output.status.success() {
        bail!(
            "apt-get {} failed:\n{}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

fn is_installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["-W", "-f=${db:Status-Status}", package])
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
