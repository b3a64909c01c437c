//! Finds the libraries that engines open at run time.

use std::{
    env,
    path::{Path, PathBuf},
};

use super::EngineError;

/// The configured path, or else the value of the environment's `variable`.
pub(super) fn named(configured: Option<&Path>, variable: &str) -> Option<PathBuf> {
    let from_env = env::var_os(variable).filter(|v| !v.is_empty());
    let configured = configured.map(Path::to_owned);
    configured.or(from_env.map(PathBuf::from))
}

/// The first of the candidates that is `usable`.
pub(super) fn first(
    candidates: Vec<PathBuf>,
    usable: impl Fn(&PathBuf) -> bool,
    what: &str,
    advice: &'static str,
) -> Result<PathBuf, EngineError> {
    match candidates.iter().find(|path| usable(path)) {
        Some(found) => Ok(found.clone()),
        None => Err(EngineError::Missing {
            what: what.to_owned(),
            searched: candidates,
            advice,
        }),
    }
}

/// The `lib/python3*` of the active virtual environment, then of every `python3` on the `PATH`:
/// PyTorch and TensorRT may be installed there.
pub(super) fn python_folders() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = env::var_os("VIRTUAL_ENV")
        .map(PathBuf::from)
        .into_iter()
        .collect();
    let path = env::var_os("PATH").unwrap_or_default();
    let bins = env::split_paths(&path).filter(|bin| bin.join("python3").exists());
    prefixes.extend(bins.filter_map(|bin| bin.parent().map(Path::to_owned)));
    let libraries = prefixes
        .iter()
        .filter_map(|p| p.join("lib").read_dir().ok());
    libraries
        .flat_map(|entries| entries.flatten())
        .filter(|e| e.file_name().to_string_lossy().starts_with("python3"))
        .map(|e| e.path())
        .collect()
}
