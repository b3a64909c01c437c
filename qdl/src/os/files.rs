//! How many files a process may have open.

/// Raises this process's limit of open files to `want`, as far as the system lets it. Returns the
/// limit from then on; 0 where the system does not say.
pub fn open_files(want: u64) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable for the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return 0;
    }
    let raised = libc::rlimit {
        rlim_cur: limit.rlim_cur.max(want.min(limit.rlim_max)),
        ..limit
    };
    // SAFETY: `raised` is readable for the call.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } {
        0 => raised.rlim_cur,
        _ => limit.rlim_cur,
    }
}
