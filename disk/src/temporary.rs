//! Files and folders that go with the process.

use std::{
    fs,
    ops::Deref,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The paths of all [`Temporary`] values of this process.
static ALL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<PathBuf>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file or folder that a drop removes, as does [`sweep`]. It need not exist.
#[derive(Debug)]
pub struct Temporary(PathBuf);

impl Temporary {
    /// Registers `path`.
    pub fn new(path: PathBuf) -> Self {
        all().push(path.clone());
        Temporary(path)
    }
}

impl Deref for Temporary {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let mut all = all();
        remove(&self.0);
        if let Some(at) = all.iter().position(|path| *path == self.0) {
            all.swap_remove(at);
        }
    }
}

fn remove(path: &Path) {
    // Ignore errors: the path may not exist, and this is the last attempt.
    if fs::remove_file(path).is_err() {
        let _ = fs::remove_dir_all(path);
    }
}

/// Removes every [`Temporary`] of this process. Call it before an end without destructors.
pub fn sweep() {
    all().drain(..).for_each(|path| remove(&path));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_paths_go_with_their_value_or_with_a_sweep() {
        let folder = tempfile::tempdir().expect("a folder");
        let [file, inside] = ["a", "b/c"].map(|name| folder.path().join(name));
        let make = || {
            fs::create_dir_all(folder.path().join("b")).expect("made");
            [&file, &inside]
                .into_iter()
                .for_each(|path| fs::write(path, "").expect("written"));
            [file.clone(), folder.path().join("b")].map(Temporary::new)
        };
        drop(make());
        assert!(!file.exists() && !inside.exists());
        let kept = make();
        sweep();
        assert!(!file.exists() && !inside.exists());
        drop(kept);
    }
}
