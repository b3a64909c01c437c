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

use crate::{EngineError, search};
use fabric::os::lock;

/// Folder in the repository where `cargo xtask setup` installs ONNX Runtime.
const KEPT_IN: &str = ".deps/onnxruntime-1.31.1";
const FILE: &str = "libonnxruntime.so.1.31.1";

/// ONNX Runtime's environment, of which a process may have only one.
static ENVIRONMENT: Mutex<Option<Environment>> = Mutex::new(None);

/// Finds the library: the configured path; else the environment variable `ORT_DYLIB_PATH`; else a
/// trusted library: what `cargo xtask setup` installed in a folder above the program, the Python
/// package `onnxruntime` of the installation that has this program, what `cargo xtask setup`
/// installed above the working directory.
/// Error: lists every searched path. A named path that does not exist is
/// an error, without a search elsewhere.
pub fn find_library(configured: Option<&Path>) -> Result<PathBuf, EngineError> {
    let (what, advice) = (
        "ONNX Runtime was",
        "run `cargo xtask setup` or `pip install onnxruntime==1.31.1`, or name the library in \
         engine.library or ORT_DYLIB_PATH",
    );
    match search::named_path(configured, "ORT_DYLIB_PATH") {
        Some(named) => search::find_first(&[named], |path| path.is_file(), what, advice),
        None => search::find_trusted(&installed_paths(), what, advice),
    }
}

/// Paths of installed libraries; if there are none, the path in a checkout.
fn installed_paths() -> Vec<PathBuf> {
    let program = env::current_exe().unwrap_or_default();
    // `pip` installs this program beside a Python.
    let prefix = program.parent().and_then(Path::parent);
    let packages = prefix.into_iter().flat_map(search::packages_of);
    let packages = packages.map(|folder| folder.join("onnxruntime/capi").join(FILE));
    let here = env::current_dir().unwrap_or_default();
    let [above, here] = [&program, &here].map(|start| {
        let homes = start.ancestors();
        homes.map(|home| home.join(KEPT_IN).join(FILE))
    });
    let all = above.chain(packages).chain(here);
    let found: Vec<_> = all.filter(|path| path.is_file()).collect();
    match found.is_empty() {
        true => vec![Path::new(KEPT_IN).join(FILE)],
        false => found,
    }
}

/// Opens the library and makes the environment. Later calls return the same environment: a process
/// keeps the first library that it opens.
pub(crate) fn load(configured: Option<&Path>) -> Result<Environment, EngineError> {
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
    let invalid = |e: &dyn Error| {
        EngineError::engine(format!(
            "{}: not a usable ONNX Runtime library ({e}): run `cargo xtask setup` for the one this \
             was built for",
            path.display()
        ))
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
