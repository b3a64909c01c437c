//! Temporary folders of this process, which only this user can enter. They go with the process:
//! [`remove_all`] removes them before an exit without destructors, and the next process removes
//! those of a killed one.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Mutex,
};

use crate::lock;

/// First word of the folders' names; the process id follows.
const NAME: &str = "qdl-node-";

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A folder of mode 0700, whatever the umask. Its drop removes it.
#[derive(Debug)]
pub(super) struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// Makes a folder in `TMPDIR`, and removes those of this user's dead processes there.
    pub fn make() -> io::Result<Self> {
        Self::make_in(&std::env::temp_dir())
    }

    fn make_in(root: &Path) -> io::Result<Self> {
        sweep(root);
        let folder = tempfile::Builder::new()
            .prefix(&format!("{NAME}{}-", std::process::id()))
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(root)?;
        let folder = folder.keep();
        lock(&FOLDERS).push(folder.clone());
        Ok(TemporaryFolder(folder))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        lock(&FOLDERS).retain(|folder| *folder != self.0);
        if let Err(e) = fs::remove_dir_all(&self.0) {
            tracing::debug!("{}: {e}", self.0.display());
        }
    }
}

/// Removes the folders that this process still has. Call it before an exit without destructors.
pub fn remove_all() {
    for folder in lock(&FOLDERS).drain(..) {
        let _ = fs::remove_dir_all(folder);
    }
}

/// Removes the folders in `root` that belong to this user and to no living process.
fn sweep(root: &Path) {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| {
            let (pid, _) = name.strip_prefix(NAME)?.split_once('-')?;
            pid.parse::<u32>().ok()
        });
        let Some(pid) = pid else { continue };
        // SAFETY: a plain system call.
        let user = unsafe { libc::geteuid() };
        // No link is followed.
        let is_own = entry
            .metadata()
            .is_ok_and(|m| m.is_dir() && m.uid() == user);
        let is_alive = Path::new("/proc").join(pid.to_string()).exists();
        if is_own && !is_alive {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_this_users_alone_and_stale_ones_go() {
        let root = tempfile::tempdir().expect("a folder");
        let at = |name: &str| root.path().join(name);
        // No process has this id: the kernel's largest is 2^22.
        let (stale, other) = (at(&format!("{NAME}9999999-x")), at("other-9999999-x"));
        let alive = at(&format!("{NAME}1-x"));
        for folder in [&stale, &other, &alive] {
            fs::create_dir(folder).expect("made");
        }
        fs::write(stale.join("in"), "").expect("written");
        // SAFETY: a plain system call.
        let umask = unsafe { libc::umask(0) };
        let made = TemporaryFolder::make_in(root.path());
        // SAFETY: a plain system call.
        unsafe { libc::umask(umask) };
        let made = made.expect("made");
        let mode = fs::metadata(made.path()).expect("there").mode() & 0o777;
        assert_eq!(mode, 0o700);
        assert!(!stale.exists() && other.exists() && alive.exists());
        let (path, second) = (
            made.path().to_owned(),
            TemporaryFolder::make_in(root.path()),
        );
        drop(made);
        assert!(!path.exists());
        let second = second.expect("made");
        remove_all();
        assert!(!second.path().exists());
    }
}
