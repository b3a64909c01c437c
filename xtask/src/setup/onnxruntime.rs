//! Copies ONNX Runtime's shared library out of its Python package.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{deps, expect_sha256, make_folder, python, sha256};

/// The version that `models/requirements.txt` pins.
pub const VERSION: &str = "1.31.1";

/// SHA-256 of the library by architecture. The wheels for all Python versions contain the same
/// file.
const HASHES: &[(&str, &str)] = &[
    (
        "x86_64",
        "fc44112fbe06d7d689c57e11d3862031f64711007e4ee020f8eed5185fd2c1d3",
    ),
    (
        "aarch64",
        "8aa3b76b28c778a2b1dd660d34161adb1d508c9ccd04ff9dc80e26eca5df8467",
    ),
];

/// Copies the library to `.deps/onnxruntime-VERSION/`. Checks the copy's hash on every call.
pub fn ensure(root: &Path) -> Result<Option<String>> {
    let architecture = std::env::consts::ARCH;
    let Some((_, wanted)) = HASHES.iter().find(|(name, _)| *name == architecture) else {
        bail!("no ONNX Runtime is known for {architecture}");
    };
    let name = format!("libonnxruntime.so.{VERSION}");
    let folder = deps(root).join(format!("onnxruntime-{VERSION}"));
    let library = folder.join(&name);
    if library.is_file() && sha256(std::slice::from_ref(&library))? == *wanted {
        return Ok(None);
    }
    let source = python::packages(root)?.join("onnxruntime/capi").join(&name);
    expect_sha256(&source, wanted, "the library that was released")?;
    make_folder(&folder)?;
    // The file gets its final name only when it is complete.
    let partial = folder.join(format!("{name}.partial"));
    std::fs::copy(&source, &partial)
        .with_context(|| format!("cannot copy {}", source.display()))?;
    std::fs::rename(&partial, &library)
        .with_context(|| format!("cannot write {}", library.display()))?;
    Ok(Some("taken from its package".to_owned()))
}
