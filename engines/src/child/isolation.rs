//! Isolates the child processes that this process starts; reads their logs.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
    sync::OnceLock,
};

use fabric::os::{open_files, set_affinity, set_open_files};

/// The initial limit of open files, before this process raised it.
static OPEN_FILES: OnceLock<libc::rlimit> = OnceLock::new();
/// Open files per concurrent request. A connection becomes free a moment after its answer is
/// complete, and the next request may open a second connection before.
const ENDING: u64 = 2;
/// Number of other open files of the process: libraries, logs, network sockets.
const OTHERS: u64 = 256;
/// Bytes read at the end of a log to find its last line.
const TAIL: u64 = 4096;
const SIGNALS: std::ops::RangeInclusive<libc::c_int> = 1..=64;
/// Words of a mask of the 1,024 NUMA nodes that Linux can have.
const NODE_WORDS: usize = 1024 / libc::c_ulong::BITS as usize;
/// Descriptors below this number are marked one by one if the kernel has no `close_range`.
const DESCRIPTORS: libc::c_int = 1 << 16;

/// Makes the child of `command` start like a child of the shell that started this process:
///
/// * no signal is blocked, and every signal but SIGHUP has its default action; an ignored SIGHUP
///   stays ignored (`nohup`);
/// * only descriptors 0 to 2 are open;
/// * the limit of open files is the initial limit of this process;
/// * the child gets the signal `on_death`, if any, at the end of the thread that started the child.
///
/// With `on_death`, the child fails to start if this process has ended.
pub(crate) fn isolate(command: &mut Command, on_death: Option<libc::c_int>) {
    let parent = std::process::id() as libc::pid_t;
    let files = OPEN_FILES.get().copied();
    // SAFETY: between fork and exec the closure only makes async-signal-safe system calls and does
    // not allocate.
    unsafe {
        command.pre_exec(move || {
            if let Some(signal) = on_death {
                check(libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong))?;
                if libc::getppid() != parent {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
            }
            // Some signals refuse an action, which is no error. Reset the actions before the mask:
            // no handler of this process may run in the child.
            for signal in SIGNALS.filter(|signal| *signal != libc::SIGHUP) {
                libc::signal(signal, libc::SIG_DFL);
            }
            let mut none: libc::sigset_t = std::mem::zeroed();
            check(libc::sigemptyset(&mut none))?;
            check(libc::sigprocmask(
                libc::SIG_SETMASK,
                &none,
                std::ptr::null_mut(),
            ))?;
            if let Some(files) = files {
                check(libc::setrlimit(libc::RLIMIT_NOFILE, &files))?;
            }
            close_on_exec();
            Ok(())
        });
    }
}

/// Places the child of `command`: on the processors `cpus`, unless empty, and with its memory on
/// the NUMA node `node`. Processes that the child starts inherit both.
pub(crate) fn place(command: &mut Command, cpus: &[usize], node: Option<u32>) {
    let cpus = cpus.to_vec();
    // SAFETY: between fork and exec the closure only makes system calls and does not allocate.
    unsafe {
        command.pre_exec(move || {
            set_affinity(&cpus)?;
            let Some(node) = node else { return Ok(()) };
            let mut mask: [libc::c_ulong; NODE_WORDS] = [0; NODE_WORDS];
            let (word, bit) = (node / libc::c_ulong::BITS, node % libc::c_ulong::BITS);
            if let Some(word) = mask.get_mut(word as usize) {
                *word |= 1 << bit;
            }
            // The kernel ignores the last of `maxnode` bits.
            let most = NODE_WORDS * libc::c_ulong::BITS as usize + 1;
            match libc::syscall(
                libc::SYS_set_mempolicy,
                libc::MPOL_BIND,
                mask.as_ptr(),
                most,
            ) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
}

/// Sets close-on-exec for every descriptor from 3 on: libraries open files without this flag.
fn close_on_exec() {
    let flag = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
    // SAFETY: plain system calls; for a number without a descriptor they fail without effect.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, flag) != 0 {
            for descriptor in 3..DESCRIPTORS {
                libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
    }
}

/// Keeps this process's limit of open files for its children. Before anything raises the limit.
pub fn keep_open_files() {
    if let Ok(limit) = open_files() {
        OPEN_FILES.get_or_init(|| limit);
    }
}

/// Raises this process's limit of open files for `connections` more connections, within the hard
/// limit. Children still get the initial limit ([`isolate`]).
pub(crate) fn room_for(connections: usize) -> Result<(), String> {
    let want = connections as u64 * ENDING + OTHERS;
    let mut limit = open_files().map_err(|e| e.to_string())?;
    OPEN_FILES.get_or_init(|| limit);
    if limit.rlim_cur >= want {
        return Ok(());
    }
    if limit.rlim_max < want {
        return Err(format!(
            "{connections} requests at once need {want} open files, and this process may have {}: \
             lower it, or raise `ulimit -Hn`",
            limit.rlim_max
        ));
    }
    limit.rlim_cur = want;
    set_open_files(limit).map_err(|e| e.to_string())
}

/// The last line near the end of a log that a logger marks `ERROR`, or that names an exception of
/// Python.
pub(crate) fn last_error(path: &Path) -> Option<String> {
    let tail = tail(path, 16 * TAIL)?;
    let is_error = |line: &&str| line.contains("ERROR") || line.contains("Error: ");
    Some(tail.lines().rfind(is_error)?.trim().to_owned())
}

pub(crate) fn last_line(path: &Path) -> Option<String> {
    let tail = tail(path, TAIL)?;
    let line = tail.lines().rfind(|line| !line.trim().is_empty())?;
    Some(line.trim().to_owned())
}

fn tail(path: &Path, most: u64) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(most))).ok()?;
    let mut tail = Vec::new();
    file.take(most).read_to_end(&mut tail).ok()?;
    Some(String::from_utf8_lossy(&tail).into_owned())
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_with_anything_on_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        assert_eq!(last_line(&log), None);
        std::fs::write(&log, "one\n two \n\n").expect("written");
        assert_eq!(last_line(&log).as_deref(), Some("two"));
        assert_eq!(last_error(&log), None);
        std::fs::write(&log, "ValueError: 3\n no errors \n\n").expect("written");
        assert_eq!(last_error(&log).as_deref(), Some("ValueError: 3"));
    }
}
