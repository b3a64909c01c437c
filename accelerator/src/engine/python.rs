//! Finds Python's package folders, where PyTorch and TensorRT may be installed.

use std::{
    env,
    path::{Path, PathBuf},
};

/// The `lib/python3*` of the active virtual environment, then of every `python3` on the `PATH`.
pub(super) fn folders() -> Vec<PathBuf> {
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
