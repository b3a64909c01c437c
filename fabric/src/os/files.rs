//! How many files a process may have open.

use std::io;

/// This process's limit of open files.
///
/// # Errors
/// The system's.
pub fn open_files() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable for the call.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets this process's limit of open files.
///
/// # Errors
/// The system's.
pub fn set_open_files(limit: libc::rlimit) -> io::Result<()> {
    // SAFETY: `limit` is readable for the call.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Raises this process's limit of open files by `more`, as far as the system lets it. Returns the
/// limit before, and by how much it was raised; 0 where the system does not say.
pub fn more_open_files(more: u64) -> (u64, u64) {
    let Ok(mut limit) = open_files() else {
        return (0, 0);
    };
    let before = limit.rlim_cur;
    limit.rlim_cur = before.saturating_add(more).min(limit.rlim_max);
    let raised = limit.rlim_cur.saturating_sub(before);
    (before, set_open_files(limit).map_or(0, |()| raised))
}
