//! `cargo xtask dist`: the wheels and, on Debian, the packages, in `target/dist`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use launch::{on_path, run};

use crate::cargo::target;
use crate::programs::{self, RELEASE};
use crate::setup::{self, Models, clear};

/// Limit for a script that packs files, or tries the packages.
const PACK: Duration = Duration::from_secs(1800);

/// Exit code of a test that this machine cannot run; the test says why.
const LEFT_OUT: i32 = 77;

/// Builds and packs. With `check`, installs, runs and removes each package in a bare Debian root.
pub fn run_dist(root: &Path, check: bool) -> Result<i32> {
    setup::run(root, Models::Digits)?;
    println!("\n== building the programs");
    let built = programs::build(root, RELEASE)?;
    let out = target(root).join("dist");
    clear(&out)?;
    let stripped = out.join("qdl");
    std::fs::copy(built.join("qdl"), &stripped)
        .with_context(|| format!("cannot write {}", stripped.display()))?;
    let library = out.join("libqdl.so");
    let built = programs::library(root)?;
    std::fs::copy(&built, &library)
        .with_context(|| format!("cannot write {}", library.display()))?;
    for file in [&stripped, &library] {
        // `--strip-all` keeps the symbols of a library that programs link with.
        script(Command::new("strip").arg("--strip-all").arg(file))?;
    }
    let mut wheel = Command::new(root.join(".deps/venv/bin/python"));
    wheel
        .arg(root.join("packages/wheel.py"))
        .arg(&stripped)
        .arg(&library);
    wheel.arg(env!("CARGO_PKG_VERSION")).arg(&out);
    script(wheel.env("PYTHONDONTWRITEBYTECODE", "1"))?;
    if on_path("dpkg-deb") {
        let mut packages = Command::new("sh");
        script(
            packages
                .arg(root.join("packages/deb.sh"))
                .args([&out, &out]),
        )?;
    }
    if !check {
        return Ok(0);
    }
    let mut worst = 0;
    for name in ["packages/test_wheel.sh", "packages/test.sh"] {
        let mut test = Command::new("sh");
        let status = run(name, test.arg(root.join(name)).arg(&out), PACK)?;
        match status.code() {
            Some(LEFT_OUT) => {}
            code => worst = worst.max(code.unwrap_or(1)),
        }
    }
    Ok(worst)
}

fn script(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = run(&name, command, PACK)?;
    ensure!(status.success(), "{name}: {status}");
    Ok(())
}
