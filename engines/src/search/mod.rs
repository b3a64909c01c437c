//! Finds the libraries that engines open at run time.

pub mod trust;

use std::{
    env,
    path::{Path, PathBuf},
};

use super::EngineError;

/// The configured path, else the value of the environment variable `variable`, if not empty.
pub(super) fn named_path(configured: Option<&Path>, variable: &str) -> Option<PathBuf> {
    let from_env = env::var_os(variable).filter(|v| !v.is_empty());
    let configured = configured.map(Path::to_owned);
    configured.or(from_env.map(PathBuf::from))
}

pub(super) fn find_first(
    candidates: &[PathBuf],
    usable: impl Fn(&PathBuf) -> bool,
    what: &str,
    advice: &'static str,
) -> Result<PathBuf, EngineError> {
    match candidates.iter().find(|path| usable(path)) {
        Some(found) => Ok(found.clone()),
        None => {
            let searched = candidates.iter().map(|path| path.display().to_string());
            let searched = searched.collect::<Vec<_>>().join(", ");
            Err(EngineError::engine(format!(
                "{what} not found (looked for {searched}): {advice}"
            )))
        }
    }
}

/// As [`find_first`], of the existing ones of `candidates`, which nobody has named: skips files
/// that others could have put there.
pub(super) fn find_trusted(
    candidates: &[PathBuf],
    what: &str,
    advice: &'static str,
) -> Result<PathBuf, EngineError> {
    let mut refused = None;
    for path in candidates.iter().filter(|path| path.is_file()) {
        match trust::check(path) {
            Ok(()) => return Ok(path.clone()),
            Err(why) => drop(refused.get_or_insert((path.clone(), why))),
        }
    }
    let Some((path, why)) = refused else {
        return find_first(candidates, |_| false, what, advice);
    };
    let path = path.display();
    Err(EngineError::engine(format!(
        "{path}: is not loaded, as {why}: {advice}"
    )))
}

/// The folders of Python packages: of the active virtual environment, then of every `python3` on
/// the absolute paths of `PATH`. PyTorch and TensorRT may be installed in these folders.
pub(super) fn python_packages() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let bins = env::split_paths(&path);
    let bins = bins.filter(|bin| bin.is_absolute() && bin.join("python3").exists());
    let prefixes = bins.filter_map(|bin| bin.parent().map(Path::to_owned));
    let active = env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let prefixes = active.into_iter().chain(prefixes);
    prefixes.flat_map(|prefix| packages_of(&prefix)).collect()
}

pub(super) fn packages_of(prefix: &Path) -> Vec<PathBuf> {
    let entries = prefix.join("lib").read_dir().into_iter().flatten();
    let named = |name: &str| name.starts_with("python3");
    let mut found = Vec::new();
    for python in entries.flatten() {
        if named(&python.file_name().to_string_lossy()) {
            let both = ["site-packages", "dist-packages"].map(|name| python.path().join(name));
            found.extend(both.into_iter().filter(|folder| folder.is_dir()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::{aoti, onnx, tensorrt};

    #[test]
    fn a_library_that_others_could_have_put_there_is_not_loaded() {
        let [own, open] = [0o700, 0o777].map(|mode| {
            let folder = tempfile::tempdir().expect("a folder");
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(folder.path(), mode).expect("own");
            fs::write(folder.path().join("lib.so"), "").expect("written");
            folder
        });
        let found = |folders: &[&tempfile::TempDir]| {
            let places = folders.iter().map(|folder| folder.path().join("lib.so"));
            find_trusted(&places.collect::<Vec<_>>(), "it was", "name it")
        };
        let nearest = found(&[&open, &own]).expect("one is good");
        assert_eq!(nearest, own.path().join("lib.so"));
        let text = found(&[&open]).expect_err("anybody's").to_string();
        let place = open.path().display();
        let why = format!("is not loaded, as others can write to {place} (mode 777): name it");
        assert!(text.contains(&why), "{text}");
    }

    #[test]
    fn a_named_path_without_the_library_is_not_replaced() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let plan = |path: &Path| tensorrt::find_library(Some(path), 110_400);
        for (found, searched, advice) in [
            (
                onnx::find_library(Some(&folder.join("no.so"))),
                vec![folder.join("no.so")],
                "cargo xtask setup",
            ),
            (
                aoti::find_libraries(Some(folder)),
                vec![folder.to_owned()],
                "pip install torch",
            ),
            // A file names its folder.
            (
                aoti::find_libraries(Some(&folder.join("Cargo.toml"))),
                vec![folder.to_owned()],
                "QDL_TORCH",
            ),
            (
                plan(folder),
                ["libnvinfer.so.11", "libnvinfer_lean.so.11"]
                    .map(|n| folder.join(n))
                    .to_vec(),
                "QDL_TENSORRT",
            ),
        ] {
            let error = found.expect_err("not there");
            let text = error.to_string();
            assert!(text.contains(advice) && !text.contains('\n'), "{text}");
            let searched = searched.iter().map(|path| path.display().to_string());
            let words = format!("(looked for {})", searched.collect::<Vec<_>>().join(", "));
            assert!(text.contains(&words), "{text}");
        }
        let file = folder.join("Cargo.toml");
        assert_eq!(plan(&file).expect("there"), file);
    }
}
