//! Files and folders that go with the process.

use std::{
    env, fs,
    io::{self, ErrorKind},
    ops::Deref,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    process,
    sync::{Mutex, PoisonError},
};

/// First word of the names of [`Temporary::folder`]; the process id and a number follow.
const NAME: &str = "qdl-node-";

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

    /// Makes a folder in `TMPDIR` that only this user can enter, whatever the umask. Removes those
    /// of this user's processes that have ended.
    ///
    /// # Errors
    /// The system's error.
    pub fn folder() -> io::Result<Self> {
        folder_in(&env::temp_dir())
    }
}

fn folder_in(root: &Path) -> io::Result<Temporary> {
    let make = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
    let mut n = 0;
    let made = loop {
        let path = root.join(format!("{NAME}{}-{n}", process::id()));
        match make(&path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => n += 1,
            Err(e) => return Err(e),
            Ok(()) => break Temporary::new(path),
        }
    };
    // A new folder belongs to this user.
    remove_stale(root, fs::metadata(&*made)?.uid());
    Ok(made)
}

/// Removes the folders of a user's processes that have ended.
fn remove_stale(root: &Path, user: u32) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let id = name.strip_prefix(NAME).and_then(|n| n.split_once('-'));
        let is_over =
            |(id, _): (&str, _)| id.parse::<u32>().is_ok() && !Path::new("/proc").join(id).exists();
        // The metadata of a link is the link's own.
        let is_own = |m: fs::Metadata| m.is_dir() && m.uid() == user;
        if id.is_some_and(is_over) && entry.metadata().is_ok_and(is_own) {
            let _ = fs::remove_dir_all(entry.path());
        }
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

    #[test]
    fn a_folder_is_this_users_alone_and_those_of_ended_processes_go() {
        let root = tempfile::tempdir().expect("a folder");
        let at = |name: &str| root.path().join(name);
        // No process has this id: the kernel's largest is 2^22.
        let stale = at(&format!("{NAME}9999999-0"));
        let others = ["other-9999999-0", &format!("{NAME}1-0")].map(at);
        fs::create_dir_all(stale.join("in")).expect("made");
        others.iter().for_each(|f| fs::create_dir(f).expect("made"));
        let two = [(); 2].map(|()| folder_in(root.path()).expect("made"));
        for made in &two {
            let mode = fs::metadata(&**made).expect("there").mode() & 0o777;
            assert_eq!((mode, stale.exists()), (0o700, false));
        }
        drop(two);
        assert_eq!(fs::read_dir(root.path()).expect("there").count(), 2);
    }
}
