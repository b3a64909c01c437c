//! Installs the distribution's packages: a C++ compiler, and a Python with venv.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use launch::{on_path, run_quietly};

/// Limit for apt to fetch its lists and a compiler over a slow line.
const DEADLINE: Duration = Duration::from_secs(1800);

/// A package, and a test whether the machine has the package's programs from any source.
type Need = (&'static str, fn() -> bool);

const NEEDS: [Need; 4] = [
    // LoadGen and its shim are C++.
    ("g++", || {
        std::env::var_os("CXX").is_some() || on_path("c++") || on_path("g++")
    }),
    ("binutils", || on_path("ar") && on_path("ld")),
    ("python3", || on_path("python3")),
    // Debian's python3 lacks ensurepip, which installs pip into a new environment.
    ("python3-venv", || python_has("venv, ensurepip")),
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
    let apt_get = |what, arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive");
        run_quietly(what, &mut command, DEADLINE)
    };
    apt_get("apt-get update", &["update"])?;
    let words: Vec<_> = install.split_whitespace().skip(1).collect();
    apt_get("apt-get install", &words)?;
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
    let missing = NEEDS.iter().filter(|(_, present)| !present());
    missing.map(|(package, _)| *package).collect()
}

/// Whether `python3` can import all of these modules.
fn python_has(modules: &str) -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", &format!("import {modules}")]);
    run_quietly("python3", &mut python, Duration::from_secs(60)).is_ok()
}

fn root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(Path::new("/proc/self")).is_ok_and(|process| process.uid() == 0)
}
