//! Files and folders that go with the process.

use std::{
    fs,
    ops::Deref,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// The paths of all [`Temporary`] values of this process.
static ALL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file or folder that a drop removes, as does [`sweep`]. It need not exist.
#[derive(Debug)]
pub struct Temporary(PathBuf);

impl Temporary {
    /// Registers `path`.
    pub fn new(path: PathBuf) -> Self {
        ALL.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(path.clone());
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
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        remove(&self.0);
        all.retain(|path| *path != self.0);
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
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.drain(..).for_each(|path| remove(&path));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_paths_go_with_their_value_or_with_a_sweep() {
        let place = tempfile::tempdir().expect("a folder");
        for end in [drop, |kept| (sweep(), drop(kept)).0] {
            fs::create_dir(place.path().join("b")).expect("made");
            let paths = ["a", "b/c"].map(|name| place.path().join(name));
            paths
                .iter()
                .for_each(|path| fs::write(path, "").expect("written"));
            end(["a", "b"].map(|name| Temporary::new(place.path().join(name))));
            assert_eq!(fs::read_dir(place.path()).expect("there").count(), 0);
        }
    }
}
