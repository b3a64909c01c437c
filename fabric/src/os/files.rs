//! The limit of open files of this process.

use std::io;

/// This process's limit of open files.
///
/// # Errors
/// `getrlimit` fails.
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
/// `setrlimit` fails: the new limit exceeds the hard limit.
pub fn set_open_files(limit: libc::rlimit) -> io::Result<()> {
    // SAFETY: `limit` is readable for the call.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Raises this process's limit of open files by `more`, up to the hard limit. Returns the limit
/// before the call and the increase; the increase is 0 where the system refuses.
pub fn more_open_files(more: u64) -> (u64, u64) {
    let Ok(mut limit) = open_files() else {
        return (0, 0);
    };
    let before = limit.rlim_cur;
    limit.rlim_cur = before.saturating_add(more).min(limit.rlim_max);
    let raised = limit.rlim_cur.saturating_sub(before);
    (before, set_open_files(limit).map_or(0, |()| raised))
}
