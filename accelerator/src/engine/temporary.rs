//! Temporary folders of this process, which only this user can enter. They go with the process:
//! [`remove_temporary_folders`] comes before an exit without destructors, and the next process
//! removes those of a killed one.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process,
};

use tempfile::TempDir;

/// First word of the folders' names; the process id follows.
const NAME: &str = "qdl-node-";

/// Makes a folder in `TMPDIR` with mode 0700, whatever the umask, and removes those of this user's
/// dead processes there.
pub(super) fn temporary_folder() -> io::Result<TempDir> {
    make_in(&std::env::temp_dir())
}

/// Removes the folders of this process.
pub fn remove_temporary_folders() {
    remove(&std::env::temp_dir(), |pid| pid == process::id());
}

fn make_in(root: &Path) -> io::Result<TempDir> {
    remove(root, |pid| {
        !Path::new("/proc").join(pid.to_string()).exists()
    });
    tempfile::Builder::new()
        .prefix(&format!("{NAME}{}-", process::id()))
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir_in(root)
}

/// Removes this user's folders of the processes for which `is_over` returns true.
fn remove(root: &Path, is_over: impl Fn(u32) -> bool) {
    // SAFETY: a plain system call.
    let user = unsafe { libc::geteuid() };
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let pid = name
            .strip_prefix(NAME)
            .and_then(|rest| rest.split_once('-'));
        let is_over = pid.is_some_and(|(pid, _)| pid.parse().is_ok_and(&is_over));
        // The metadata of a link is the link's own.
        let is_own = |m: fs::Metadata| m.is_dir() && m.uid() == user;
        if is_over && entry.metadata().is_ok_and(is_own) {
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
        let stale = at(&format!("{NAME}9999999-x"));
        let others = ["other-9999999-x", &format!("{NAME}1-x")].map(at);
        fs::create_dir_all(stale.join("in")).expect("made");
        others.iter().for_each(|f| fs::create_dir(f).expect("made"));
        // SAFETY: a plain system call.
        let umask = unsafe { libc::umask(0) };
        let made = make_in(root.path());
        // SAFETY: a plain system call.
        unsafe { libc::umask(umask) };
        let made = made.expect("made");
        let mode = fs::metadata(made.path()).expect("there").mode() & 0o777;
        assert_eq!((mode, stale.exists()), (0o700, false));
        remove(root.path(), |pid| pid == process::id());
        assert!(!made.path().exists() && others.iter().all(|f| f.exists()));
    }
}
