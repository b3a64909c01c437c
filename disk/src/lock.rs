//! A lock on a folder.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Read, Seek, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{Temporary, file::PART};

/// Name of the lock's file, on a file system that locks no folder (NFS).
const FILE: &str = ".qdl-lock";
/// Maximum number of attempts, while other processes remove the folder or its file.
const TRIES: usize = 100;

/// Locks a file without a wait: `flock`.
type Flock = fn(&File) -> Result<(), TryLockError>;

/// The lock of a folder, from [`FolderLock::take`] to the drop or the process's end.
#[derive(Debug)]
pub struct FolderLock {
    /// Whether `take` made the folder.
    pub new: bool,
    /// The lock's file, if there is one. A drop removes the file while it is locked.
    file: Option<Temporary>,
    _held: File,
}

impl FolderLock {
    /// Makes the folder if it is missing, locks it, and removes the files that a killed process has
    /// half written there. The lock of a process that has ended is none.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] while another process, or another value, holds the lock.
    pub fn take(folder: &Path) -> io::Result<Self> {
        let lock = lock(folder, File::try_lock)?;
        for entry in fs::read_dir(folder)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name
                .strip_suffix(PART)
                .and_then(|name| name.rsplit_once('.'));
            if pid.is_some_and(|(_, pid)| !Path::new("/proc").join(pid).exists()) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(lock)
    }

    /// Removes the locked folder if it is empty.
    pub fn remove(&self, folder: &Path) {
        if let Some(file) = &self.file {
            let _ = fs::remove_file(&**file);
        }
        let _ = fs::remove_dir(folder);
    }
}

fn busy(who: &str, advice: &str) -> io::Error {
    let text = format!("{who} writes there: wait for its end, or name another folder{advice}");
    io::Error::new(ErrorKind::ResourceBusy, text)
}

fn lock(folder: &Path, flock: Flock) -> io::Result<FolderLock> {
    let new = !folder.exists();
    for _ in 0..TRIES {
        fs::create_dir_all(folder)?;
        let held = match File::open(folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            opened => opened?,
        };
        match flock(&held) {
            Ok(()) if is_at(&held, folder) => {
                return Ok(FolderLock {
                    new,
                    file: None,
                    _held: held,
                });
            }
            // The holder before has removed the folder.
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(busy(&holder(&held), "")),
            Err(TryLockError::Error(_)) => {
                let path = folder.join(FILE);
                if let Some(held) = lock_file(&path, flock)? {
                    let file = Some(Temporary::new(path));
                    return Ok(FolderLock {
                        new,
                        file,
                        _held: held,
                    });
                }
            }
        }
    }
    Err(busy("another process", ""))
}

/// Locks the file `path`, or without `flock` takes it if the process named in it has ended. `None`:
/// another process has removed the file meanwhile.
fn lock_file(path: &Path, flock: Flock) -> io::Result<Option<File>> {
    let own = Owner::of(std::process::id());
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let (mut file, made) = match options.clone().create_new(true).open(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => match options.open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            opened => (opened?, false),
        },
        opened => (opened?, true),
    };
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut words = text.split_whitespace();
    let (host, pid) = (words.next().unwrap_or("?"), words.next().unwrap_or("?"));
    let who = format!("process {pid} of host {host}");
    match flock(&file) {
        Ok(()) if !is_at(&file, path) => return Ok(None),
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(busy(&who, "")),
        Err(TryLockError::Error(_)) if made => {}
        Err(TryLockError::Error(_)) if own.has_ended(&text) => {
            // Two processes may find the same file: one renames it away, the other starts again.
            let away = Temporary::new(path.with_file_name(format!("{FILE}.{}", own.pid)));
            if fs::rename(path, &*away).is_ok() && fs::read_to_string(&*away)? != text {
                let _ = fs::hard_link(&*away, path);
            }
            return Ok(None);
        }
        Err(TryLockError::Error(_)) => {
            let advice = format!("; if that process has ended, remove {}", path.display());
            return Err(busy(&who, &advice));
        }
    }
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(own.text().as_bytes())?;
    Ok(Some(file))
}

/// Whether `path` still leads to this open file.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |m: io::Result<fs::Metadata>| m.ok().map(|m| (m.dev(), m.ino()));
    id(file.metadata()) == id(fs::metadata(path))
}

/// The process that holds a lock on this file, as the kernel lists it.
fn holder(file: &File) -> String {
    let inode = file.metadata().map_or(0, |m| m.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let of_file = |line: &&str| line.contains("FLOCK") && line.contains(&format!(":{inode} "));
    let line = locks.lines().find(of_file).unwrap_or_default();
    match line.split_whitespace().nth(4) {
        Some(pid) if pid != "0" => format!("process {pid}"),
        _ => "another process".to_owned(),
    }
}

/// A process, as a lock's file names it: host, id and start time.
struct Owner {
    host: String,
    pid: u32,
    /// In clock ticks since the host's start; `None` if there is no such process.
    started: Option<String>,
}

impl Owner {
    fn of(pid: u32) -> Self {
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let stat = read(format!("/proc/{pid}/stat").into());
        // The name in brackets may contain blanks; the 20th word behind it is the start time.
        let behind = stat.rsplit_once(')').map(|(_, behind)| behind);
        Owner {
            host: read("/proc/sys/kernel/hostname".into())
                .trim()
                .replace(' ', "_"),
            pid,
            started: behind
                .and_then(|b| b.split_whitespace().nth(19))
                .map(str::to_owned),
        }
    }

    fn text(&self) -> String {
        let started = self.started.as_deref().unwrap_or_default();
        format!("{} {} {started}\n", self.host, self.pid)
    }

    /// Whether `text` names a process of this host that has ended.
    fn has_ended(&self, text: &str) -> bool {
        let mut words = text.split_whitespace();
        let here = words.next() == Some(&self.host);
        let pid = words.next().and_then(|pid| pid.parse().ok());
        here && pid.is_some_and(|pid| Owner::of(pid).text() != text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_flock(_: &File) -> Result<(), TryLockError> {
        Err(TryLockError::Error(ErrorKind::Unsupported.into()))
    }

    /// As on NFS, which locks files and no folders.
    fn files_only(file: &File) -> Result<(), TryLockError> {
        match file.metadata().is_ok_and(|m| m.is_dir()) {
            true => no_flock(file),
            false => file.try_lock(),
        }
    }

    #[test]
    fn a_folder_has_one_holder_on_each_kind_of_file_system_and_is_free_after_it() {
        for flock in [File::try_lock as Flock, files_only, no_flock] {
            let place = tempfile::tempdir().expect("a folder");
            let folder = place.path().join("a/b");
            let first = lock(&folder, flock).expect("free");
            assert!(first.new);
            let error = lock(&folder, flock).expect_err("taken");
            let pid = format!("process {}", std::process::id());
            assert!(error.to_string().contains(&pid), "{error}");
            fs::remove_dir_all(&folder).expect("removed");
            drop(lock(&folder, flock).expect("another folder of this name"));
            drop(first);
            assert!(!lock(&folder, flock).expect("free").new);
            assert_eq!(fs::read_dir(&folder).expect("there").count(), 0);
        }
    }

    #[test]
    fn without_flock_the_file_of_a_process_that_has_ended_is_no_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = Owner::of(std::process::id());
        let (host, pid) = (&own.host, own.pid);
        for (text, free) in [
            (own.text(), false),
            (format!("{host} {pid} 1\n"), true),
            (format!("{host} 4194305 77\n"), true),
            ("elsewhere 1 77\n".to_owned(), false),
            // A process has made the file, and has not written it yet.
            (String::new(), false),
        ] {
            fs::write(folder.path().join(FILE), &text).expect("written");
            assert_eq!(lock(folder.path(), no_flock).is_ok(), free, "{text}");
        }
        drop(lock(folder.path(), files_only).expect("a file without a holder"));
    }

    #[test]
    fn files_that_a_killed_process_has_half_written_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let [part, own] = [".a.4194305.qdl-part", "b.part"].map(|name| folder.path().join(name));
        [&part, &own]
            .into_iter()
            .for_each(|path| fs::write(path, "").expect("written"));
        FolderLock::take(folder.path()).expect("free");
        assert!(!part.exists() && own.exists());
    }
}
