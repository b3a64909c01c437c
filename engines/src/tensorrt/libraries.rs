//! Finds the shim and TensorRT's libraries.

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::{EngineError, search};

/// The shim's file name.
pub const SHIM: &str = "libqdl_tensorrt.so";

/// Finds the shim: the environment's `QDL_TENSORRT_SHIM`; else beside the program, or in
/// `tensorrt/` there or up to two folders above (from `target/release`: where `cargo xtask
/// tensorrt` puts it).
///
/// # Errors
/// Lists every searched path. A named path that does not exist is
/// an error, without a search elsewhere.
pub fn find_shim() -> Result<PathBuf, EngineError> {
    let (what, advice) = (
        "the shim over TensorRT was",
        "build it with `cargo xtask tensorrt --include DIR` (docs/gpu.md), or name it in QDL_TENSORRT_SHIM",
    );
    if let Some(named) = search::named_path(None, "QDL_TENSORRT_SHIM") {
        return search::find_first(&[named], |path| path.is_file(), what, advice);
    }
    let program = env::current_exe().unwrap_or_default();
    let folders: Vec<&Path> = program.ancestors().skip(1).take(3).collect();
    let beside = folders.first().map(|f| f.join(SHIM));
    let above = folders.iter().map(|f| f.join("tensorrt").join(SHIM));
    let candidates: Vec<_> = beside.into_iter().chain(above).collect();
    search::find_trusted(&candidates, what, advice)
}

/// Finds TensorRT's library for a shim compiled for version `headers`: the configured path of the
/// file or its folder; else the environment's `QDL_TENSORRT`; else the Python packages
/// `tensorrt_libs`, `tensorrt` and `tensorrt_lean_libs` of the active virtual environment or of any
/// Python on the `PATH`, and the system's library folders.
///
/// # Errors
/// As [`find_shim`].
pub fn find_library(configured: Option<&Path>, headers: i32) -> Result<PathBuf, EngineError> {
    let major = headers / 10_000;
    let named = search::named_path(configured, "QDL_TENSORRT");
    if let Some(path) = &named
        && path.is_file()
    {
        return Ok(path.clone());
    }
    let folders = match named {
        Some(folder) => vec![folder],
        None => library_folders(),
    };
    // The full library also builds plans; the lean library only runs them.
    let of = |name: &str| {
        let file = format!("{name}.so.{major}");
        folders
            .iter()
            .map(move |f| f.join(&file))
            .collect::<Vec<_>>()
    };
    let candidates = [of("libnvinfer"), of("libnvinfer_lean")].concat();
    search::find_first(
        &candidates,
        |path| path.is_file(),
        &format!("TensorRT {major} was"),
        "install it, or name its folder in engine.library or QDL_TENSORRT",
    )
}

/// Path of the ONNX parser beside TensorRT's library.
pub fn parser_beside(library: &Path, version: &str) -> PathBuf {
    let major = version.split('.').next().unwrap_or_default();
    library.with_file_name(format!("libnvonnxparser.so.{major}"))
}

fn library_folders() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for packages in search::python_packages() {
        let names = ["tensorrt_libs", "tensorrt", "tensorrt_lean_libs"];
        found.extend(names.map(|name| packages.join(name)));
    }
    found.retain(|folder: &PathBuf| folder.is_dir());
    let machine = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    found.extend([machine.as_str(), "/usr/lib64", "/usr/local/tensorrt/lib"].map(PathBuf::from));
    found
}
