//! Finds the ONNX Runtime library and opens it once per process.

use std::{
    env,
    error::Error,
    path::{Path, PathBuf},
    sync::Mutex,
};

use ort::{
    environment::Environment,
    ep::{self, ExecutionProvider},
};

use crate::engine::{EngineError, search};
use crate::lock;

/// Folder in the repository where `cargo xtask setup` installs ONNX Runtime.
const KEPT_IN: &str = ".deps/onnxruntime-1.31.1";
const FILE: &str = "libonnxruntime.so.1.31.1";

/// ONNX Runtime's environment, of which a process may have only one.
static ENVIRONMENT: Mutex<Option<Environment>> = Mutex::new(None);

/// Finds the library: the configured path; else the environment variable `ORT_DYLIB_PATH`; else the
/// library that `cargo xtask setup` installed, in a folder above the working directory or program;
/// else the Python package `onnxruntime` of the installation that has this program.
/// Error: [`EngineError::Missing`] lists every searched path. A named path that does not exist is
/// an error, without a search elsewhere.
pub fn find_library(configured: Option<&Path>) -> Result<PathBuf, EngineError> {
    let named = search::named_path(configured, "ORT_DYLIB_PATH");
    let candidates = named.map_or_else(installed_paths, |path| vec![path]);
    search::find_first(
        candidates,
        |path| path.is_file(),
        "ONNX Runtime was",
        "run `cargo xtask setup` or `pip install onnxruntime==1.31.1`, or name the library in \
         engine.library or ORT_DYLIB_PATH",
    )
}

/// Paths of the installed library. The search goes upwards from the working directory and from the
/// program, to the nearest folder with the installation or a `Cargo.lock`; then through the Python
/// packages beside the program.
fn installed_paths() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let starts = [env::current_dir().ok(), env::current_exe().ok()];
    for start in starts.into_iter().flatten() {
        let root = start
            .ancestors()
            .find(|d| d.join(KEPT_IN).is_dir())
            .or_else(|| start.ancestors().find(|d| d.join("Cargo.lock").is_file()));
        if let Some(root) = root {
            let path = root.join(KEPT_IN).join(FILE);
            if !found.contains(&path) {
                found.push(path);
            }
        }
    }
    if found.is_empty() {
        found.push(Path::new(KEPT_IN).join(FILE));
    }
    // `pip` installs this program beside a Python.
    let own = env::current_exe().ok();
    let prefix = own.as_deref().and_then(Path::parent).and_then(Path::parent);
    let packages = prefix.into_iter().flat_map(search::packages_of);
    let libraries = packages.map(|folder| folder.join("onnxruntime/capi").join(FILE));
    found.extend(libraries.filter(|path| path.is_file()));
    found
}

/// Opens the library and makes the environment. Later calls return the same environment: a process
/// keeps the first library that it opens.
pub(in crate::engine) fn load(configured: Option<&Path>) -> Result<Environment, EngineError> {
    let mut environment = lock(&ENVIRONMENT);
    if let Some(e) = &*environment {
        // A wrong path is a configuration error, even if the open library makes it unnecessary.
        configured
            .map(|path| find_library(Some(path)))
            .transpose()?;
        return Ok(e.clone());
    }
    let path = find_library(configured)?;
    // For a relative path, the loader would first search beside the program.
    let path = std::path::absolute(&path).unwrap_or(path);
    let invalid = |e: &dyn Error| EngineError::Library {
        path: path.clone(),
        reason: format!(
            "not a usable ONNX Runtime library ({e}): run `cargo xtask setup` for the one this was \
             built for"
        ),
    };
    let opened = ort::init_from(&path).map_err(|e| invalid(&e))?;
    let made = opened.with_name("qdl").with_telemetry(false).build();
    let made = made.map_err(|e| invalid(&e))?;
    *environment = Some(made.clone());
    Ok(made)
}

pub(super) fn check_cuda() -> Result<(), EngineError> {
    match ep::CUDA::is_available() {
        Ok(true) => Ok(()),
        Ok(false) => Err(EngineError::provider("it was built without CUDA")),
        Err(e) => Err(EngineError::provider(e)),
    }
}
