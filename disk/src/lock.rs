//! A lock on a folder: `flock`, or on a file system that has none for folders (NFS), a file.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Write},
    os::unix::fs::MetadataExt,
    path::Path,
};

use super::Temporary;

/// Name of the lock's file.
const FILE: &str = ".qdl-lock";

type Flock = fn(&File) -> Result<(), TryLockError>;

/// The lock of a folder, until the drop or the process's end.
#[derive(Debug)]
pub struct FolderLock {
    /// Whether [`FolderLock::take`] made the folder.
    pub new: bool,
    /// The lock's file, if there is one. A drop removes it before `_held` is unlocked.
    file: Option<Temporary>,
    _held: File,
}

impl FolderLock {
    /// Makes the folder if it is missing, and locks it.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] while another process, or another value, holds the lock.
    pub fn take(folder: &Path) -> io::Result<Self> {
        lock(folder, File::try_lock)
    }

    /// Removes the locked folder if it is empty.
    pub fn remove(&self, folder: &Path) {
        if let Some(file) = &self.file {
            let _ = fs::remove_file(&**file);
        }
        let _ = fs::remove_dir(folder);
    }
}

fn lock(folder: &Path, flock: Flock) -> io::Result<FolderLock> {
    let new = !folder.exists();
    loop {
        fs::create_dir_all(folder)?;
        let held = File::open(folder)?;
        let file = match flock(&held) {
            Ok(()) => None,
            Err(TryLockError::WouldBlock) => return Err(busy("another process", "")),
            Err(TryLockError::Error(_)) => Some(make_file(&folder.join(FILE))?),
        };
        let lock = FolderLock {
            new,
            file,
            _held: held,
        };
        let id = |m: fs::Metadata| (m.dev(), m.ino());
        // The holder before may have removed the folder.
        if fs::metadata(folder).ok().map(id) == Some(id(lock._held.metadata()?)) {
            return Ok(lock);
        }
    }
}

fn busy(who: &str, advice: &str) -> io::Error {
    let text = format!("{who} writes there: wait for its end, or name another folder{advice}");
    io::Error::new(ErrorKind::ResourceBusy, text)
}

/// Makes the lock's file. The file of a process of this host that has ended is no lock.
fn make_file(path: &Path) -> io::Result<Temporary> {
    let own = owner(std::process::id());
    loop {
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            made => {
                made?.write_all(own.as_bytes())?;
                return Ok(Temporary::new(path.to_owned()));
            }
        }
        let there = fs::read_to_string(path).unwrap_or_default();
        let [host, pid] = [0, 1].map(|n| there.split(' ').nth(n).unwrap_or("?"));
        let here = own.split(' ').next() == Some(host);
        if !here || pid.parse().is_ok_and(|pid| owner(pid) == there) {
            let advice = format!("; if it has ended, remove {}", path.display());
            return Err(busy(&format!("process {pid} of host {host}"), &advice));
        }
        // Two processes may find the file: the later one gives back the earlier one's.
        let away = Temporary::new(path.with_extension(std::process::id().to_string()));
        if fs::rename(path, &*away).is_ok() && fs::read_to_string(&*away)? != there {
            let _ = fs::hard_link(&*away, path);
        }
    }
}

/// Host, process and the process's start time in ticks, which is missing once it has ended.
fn owner(pid: u32) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let stat = read(&format!("/proc/{pid}/stat"));
    // The program's name in brackets may have blanks; the start time is the 20th word behind it.
    let started = stat
        .rsplit(')')
        .next()
        .and_then(|s| s.split_whitespace().nth(19));
    let host = read("/proc/sys/kernel/hostname");
    format!("{} {pid} {}\n", host.trim(), started.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_flock(_: &File) -> Result<(), TryLockError> {
        Err(TryLockError::Error(ErrorKind::Unsupported.into()))
    }

    #[test]
    fn a_folder_has_one_holder_and_is_free_after_it() {
        for flock in [File::try_lock as Flock, no_flock] {
            let place = tempfile::tempdir().expect("a folder");
            let folder = place.path().join("a/b");
            let first = lock(&folder, flock).expect("free");
            let error = lock(&folder, flock).expect_err("taken");
            assert!(
                first.new && error.to_string().contains("writes there"),
                "{error}"
            );
            first.remove(&folder);
            assert!(lock(&folder, flock).expect("another folder").new);
            drop(first);
            assert!(!lock(&folder, flock).expect("free").new);
            assert_eq!(fs::read_dir(&folder).expect("there").count(), 0);
        }
    }

    #[test]
    fn without_flock_the_file_of_a_process_that_has_ended_is_no_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = owner(std::process::id());
        let host = own.split(' ').next().expect("a host");
        for (text, free) in [
            (own.clone(), false),
            (format!("{host} {} 1\n", std::process::id()), true),
            (format!("{host} 4194305 77\n"), true),
            ("elsewhere 4194305 77\n".to_owned(), false),
            // Its process has made the file, and not written it yet.
            (String::new(), false),
        ] {
            fs::write(folder.path().join(FILE), &text).expect("written");
            assert_eq!(lock(folder.path(), no_flock).is_ok(), free, "{text}");
        }
    }
}
