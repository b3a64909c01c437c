//! Tests engine `tensorrt` without a GPU. The shim compiles with the headers of TensorRT 11.4 from
//! the crate `trtx-sys`. The engine's error paths run with the lean runtime of that version, which
//! loads on any machine and builds no plans. cargo and pip fetch both by name; neither is part of
//! this repository.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use launch::{run, run_quietly};

use super::compile;
use crate::cargo::cargo;
use crate::setup::{
    clear, download, expect_sha256, interpreter, is_stamped, paths_in, unpack_wheels, write_stamp,
};

/// The crate with the headers, and the SHA-256 of its archive.
const CRATE: &str = "trtx-sys";
const CRATE_VERSION: &str = "0.9.1+rtx1.7";
const CRATE_HASH: &str = "5480ee056292951daa1bc74532162d6cb75190f091e45d7d97c0c356916ae171";
const HEADERS: &str = "TensorRT-Headers/TRT-Enterprise-11.4";
/// The Python package with the runtime, and the SHA-256 of its wheel for x86_64.
const PACKAGE: &str = "tensorrt-lean-cu13-libs";
const PACKAGE_VERSION: &str = "11.4.0.106";
const PACKAGE_HASH: &str = "e022b8d0e21f19258657aec6760e1de8b454ed176f76217e3f7ec2036c5a9410";
const RUNTIME: &str = "tensorrt_lean_libs/libnvinfer_lean.so.11";
/// Limit for fetching 44 MB over a slow line.
const FETCH: Duration = Duration::from_secs(900);
/// Limit for building and running the tests; the tests themselves take a second.
const TESTS: Duration = Duration::from_secs(1800);
/// Text in the error that reports a failed fetch.
pub const UNREACHABLE: &str = "cannot be fetched from here";
/// Text in the error on machines other than x86_64.
pub const OTHER_MACHINE: &str = "is for x86_64 machines";

/// Fetches headers and runtime, compiles the shim, and runs the tests; returns their exit code.
pub fn check(root: &Path) -> Result<i32> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("the lean runtime that is fetched {OTHER_MACHINE}");
    }
    let deps = root.join(".deps");
    let headers = headers(root, &deps)?;
    let runtime = runtime(root, &deps)?;
    let folder = root.join("target/tensorrt-check");
    let shim = folder.join("libqdl_tensorrt.so");
    compile(root, &headers, None, &shim)?;
    println!("compiled with the headers of TensorRT 11.4");
    let other = folder.join("libnvinfer.so.8");
    let mut stand_in = Command::new(super::compiler()?);
    stand_in
        .args(["-x", "c", "-shared", "-fPIC"])
        .arg(root.join("engines/tensorrt/stand-in/nvinfer8.c"))
        .arg("-o")
        .arg(&other);
    run_quietly("C compiler", &mut stand_in, TESTS)?;

    let mut tests = cargo(root);
    tests
        // The whole workspace, as `xtask test` builds it: other packages could select other
        // features, and build everything again.
        .args(["test", "--workspace", "--locked", "--lib"])
        .args(["--test", "it", "--", "--ignored", "lean_"])
        .env("QDL_TENSORRT_SHIM", &shim)
        .env("QDL_TENSORRT", &runtime)
        .env("QDL_TENSORRT_OTHER", &other);
    let status = run("tests", &mut tests, TESTS)?;
    Ok(status.code().unwrap_or(1))
}

fn headers(root: &Path, deps: &Path) -> Result<PathBuf> {
    let folder = deps.join("tensorrt-headers-11.4");
    let stamp = folder.join("complete");
    if is_stamped(&stamp, CRATE_HASH) {
        return Ok(folder);
    }
    // `cargo info` fetches a crate without its dependencies.
    let mut info = cargo(root);
    info.args(["info", "--quiet", &format!("{CRATE}@{CRATE_VERSION}")])
        // Outside the workspace, whose lock file does not contain this crate.
        .current_dir(deps);
    run_quietly("cargo info", &mut info, FETCH)
        .with_context(|| format!("the headers of TensorRT 11.4 (crate {CRATE}) {UNREACHABLE}"))?;
    let archive = archive()?;
    expect_sha256(&archive, CRATE_HASH, "the crate that was released")?;
    clear(&folder)?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--gzip", "--no-same-owner"])
        .arg("--strip-components=3")
        .arg("--file")
        .arg(&archive)
        .arg("--directory")
        .arg(&folder)
        .arg(format!("{CRATE}-{CRATE_VERSION}/{HEADERS}"));
    run_quietly("tar", &mut tar, FETCH)?;
    write_stamp(&stamp, CRATE_HASH)?;
    Ok(folder)
}

fn archive() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let cache = home
        .context("neither CARGO_HOME nor HOME is set")?
        .join("registry/cache");
    let name = format!("{CRATE}-{CRATE_VERSION}.crate");
    let registries = paths_in(&cache)?.map(|path| path.join(&name));
    let mut found = registries.filter(|path| path.is_file());
    found
        .next()
        .with_context(|| format!("cargo has no {name} in {}", cache.display()))
}

fn runtime(root: &Path, deps: &Path) -> Result<PathBuf> {
    let folder = deps.join(format!("tensorrt-lean-{PACKAGE_VERSION}"));
    let stamp = folder.join("complete");
    if is_stamped(&stamp, PACKAGE_HASH) {
        return Ok(folder);
    }
    clear(&folder)?;
    let python = interpreter(root)?;
    let pinned = format!("{PACKAGE}=={PACKAGE_VERSION} --hash=sha256:{PACKAGE_HASH}\n");
    download(&python, &folder, &pinned, &["--only-binary=:all:"])
        .with_context(|| format!("the lean runtime (package {PACKAGE}) {UNREACHABLE}"))?;
    // pip has checked the wheel's hash.
    let wheels = unpack_wheels(&python, &folder, &folder)?;
    let [wheel] = &wheels[..] else {
        bail!("pip said it was done, but left {} wheels", wheels.len());
    };
    let name = RUNTIME.rsplit('/').next().unwrap_or(RUNTIME);
    std::fs::rename(folder.join(RUNTIME), folder.join(name))
        .with_context(|| format!("{} has no {RUNTIME}", wheel.display()))?;
    std::fs::remove_file(wheel).with_context(|| format!("cannot remove {}", wheel.display()))?;
    write_stamp(&stamp, PACKAGE_HASH)?;
    Ok(folder)
}
