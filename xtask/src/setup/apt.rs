//! Installs the distribution's packages: a C++ compiler, and a Python with venv.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail};
use launch::{on_path, run_quietly};

/// Limit for apt to fetch its lists and a compiler over a slow line.
const DEADLINE: Duration = Duration::from_secs(1800);

/// A package, and a test whether the machine has the package's programs from any source.
struct Need {
    package: &'static str,
    present: fn() -> bool,
}

const NEEDS: &[Need] = &[
    // LoadGen and its shim are C++.
    Need {
        package: "g++",
        present: || std::env::var_os("CXX").is_some() || on_path("c++") || on_path("g++"),
    },
    Need {
        package: "binutils",
        present: || on_path("ar") && on_path("ld"),
    },
    Need {
        package: "python3",
        present: || on_path("python3"),
    },
    // Debian's python3 lacks ensurepip, which installs pip into a new environment.
    Need {
        package: "python3-venv",
        present: || python_has(&["venv", "ensurepip"]),
    },
];

/// Installs missing packages as root; for other users the error has the command to run.
pub fn ensure() -> Result<Option<String>> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(None);
    }
    let packages = missing.join(" ");
    if !on_path("apt-get") {
        bail!(
            "this machine has no {packages} (Debian's names); install them with its own package manager"
        );
    }
    let install = format!("apt-get install --yes --no-install-recommends {packages}");
    if !root() {
        bail!(
            "this machine has no {packages}; run this, then try again:\n\n    sudo apt-get update && sudo {install}\n"
        );
    }
    let mut update = Command::new("apt-get");
    update
        .arg("update")
        .env("DEBIAN_FRONTEND", "noninteractive");
    run_quietly("apt-get update", &mut update, DEADLINE)?;
    let mut command = Command::new("apt-get");
    command
        .args(["install", "--yes", "--no-install-recommends"])
        .args(&missing)
        .env("DEBIAN_FRONTEND", "noninteractive");
    run_quietly("apt-get install", &mut command, DEADLINE)?;
    let still = self::missing();
    if !still.is_empty() {
        bail!(
            "apt-get installed {packages}, and yet {} is not to be found on PATH",
            still.join(" ")
        );
    }
    Ok(Some(packages))
}

fn missing() -> Vec<&'static str> {
    NEEDS
        .iter()
        .filter(|need| !(need.present)())
        .map(|need| need.package)
        .collect()
}

/// Whether `python3` can import all of these modules.
fn python_has(modules: &[&str]) -> bool {
    Command::new("python3")
        .args(["-c", &format!("import {}", modules.join(", "))])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(Path::new("/proc/self")).is_ok_and(|process| process.uid() == 0)
}
