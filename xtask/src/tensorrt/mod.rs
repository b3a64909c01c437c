//! `cargo xtask tensorrt`: compiles the shim over TensorRT with the user's headers. With `--check`
//! it fetches headers and a runtime, and tests the shim as far as possible without a GPU.

mod check;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use launch::{on_path, run_quietly};

use check::check;
pub use check::{OTHER_MACHINE, UNREACHABLE};

/// Limit for a compiler on a slow machine: the headers have a megabyte.
const DEADLINE: Duration = Duration::from_secs(600);
const HEADERS: [&str; 2] = ["NvInfer.h", "NvOnnxParser.h"];

/// Arguments of the command line.
#[derive(clap::Args)]
pub struct Args {
    /// Folder of NvInfer.h and NvOnnxParser.h.
    #[arg(long, required_unless_present = "check")]
    include: Option<PathBuf>,
    /// Folder of cuda_runtime_api.h; without it, a stand-in with the necessary declarations serves.
    #[arg(long)]
    cuda_include: Option<PathBuf>,
    /// File of the shim; the default is target/tensorrt/libqdl_tensorrt.so, where programs in
    /// target/release look for it.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Fetch the headers of TensorRT 11.4 and its lean runtime (44 MB), compile the shim with
    /// them, and test it.
    #[arg(long, conflicts_with_all = ["include", "cuda_include", "out"])]
    check: bool,
}

/// Compiles the shim, or fetches headers and runtime and tests it. Returns the exit code.
pub fn run(root: &Path, args: Args) -> Result<i32> {
    if args.check {
        return check(root);
    }
    // The accelerator looks for the shim there, beside `target/release`.
    let default = || crate::cargo::target(root).join("tensorrt/libqdl_tensorrt.so");
    let out = args.out.unwrap_or_else(default);
    let include = args.include.unwrap_or_default();
    compile(root, &include, args.cuda_include.as_deref(), &out)?;
    println!("{}", out.display());
    Ok(0)
}

/// Compiles the shim to `out`. Without CUDA's headers, a stand-in replaces them.
fn compile(root: &Path, include: &Path, cuda: Option<&Path>, out: &Path) -> Result<()> {
    for header in HEADERS {
        if !include.join(header).is_file() {
            bail!(
                "{} has no {header}: --include wants the folder of TensorRT's headers, the ONNX parser's among them",
                include.display()
            );
        }
    }
    let folder = root.join("engines/tensorrt");
    let stand_in = folder.join("stand-in");
    let cuda = cuda.unwrap_or(&stand_in);
    if !cuda.join("cuda_runtime_api.h").is_file() {
        bail!("{} has no cuda_runtime_api.h", cuda.display());
    }
    if let Some(parent) = out.parent() {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot make {}", parent.display()))?;
    }
    let mut command = Command::new(compiler()?);
    command
        .args(["-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra"])
        // Later versions deprecate what 8.5 needs.
        .arg("-Wno-deprecated-declarations")
        .args(["-fvisibility=hidden", "-fvisibility-inlines-hidden"])
        .arg("-I")
        .arg(&folder)
        .arg("-isystem")
        .arg(cuda)
        .arg("-isystem")
        .arg(include)
        .arg(folder.join("shim.cpp"))
        .arg("-o")
        .arg(out)
        .args(["-ldl", "-Wl,--no-undefined"]);
    run_quietly("C++ compiler", &mut command, DEADLINE)?;
    Ok(())
}

fn compiler() -> Result<std::ffi::OsString> {
    if let Some(named) = std::env::var_os("CXX").filter(|v| !v.is_empty()) {
        return Ok(named);
    }
    let found = ["c++", "g++", "clang++"].into_iter().find(|c| on_path(c));
    found
        .map(Into::into)
        .context("no C++ compiler: `cargo xtask setup` brings one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_headers_is_named() {
        let root = crate::repository();
        let nowhere = Path::new("/nowhere/include");
        let error = compile(&root, nowhere, None, Path::new("/nowhere/x.so")).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("/nowhere/include has no NvInfer.h"),
            "{text}"
        );
    }
}
