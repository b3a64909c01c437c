//! Sets what a program that this process starts inherits.

use std::{io, os::unix::process::CommandExt, process::Command, sync::OnceLock};

use fabric::os::open_files;

/// The limit of open files that this process was started with, before it raised its own.
static OPEN_FILES: OnceLock<libc::rlimit> = OnceLock::new();
/// Signal numbers of Linux.
const SIGNALS: std::ops::RangeInclusive<libc::c_int> = 1..=64;
/// Descriptors that are closed one by one where the kernel has no `close_range`.
const DESCRIPTORS: libc::c_int = 1 << 16;

/// Makes the child of `command` start like a child of the shell that started this process:
///
/// * no signal is blocked, and every signal but SIGHUP has its default action; an ignored SIGHUP
///   stays ignored (`nohup`);
/// * descriptors 0 to 2 alone are open;
/// * the limit of open files is the one that this process was started with;
/// * it gets signal `on_death` when the thread that started it ends; with `None` it gets none.
///
/// The child fails to start where this process is gone by then.
pub(super) fn isolate(command: &mut Command, on_death: Option<libc::c_int>) {
    let parent = std::process::id() as libc::pid_t;
    let files = OPEN_FILES.get().copied();
    // SAFETY: between fork and exec the closure makes system calls that are async-signal-safe, and
    // allocates nothing.
    unsafe {
        command.pre_exec(move || {
            if let Some(signal) = on_death {
                checked(libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong))?;
                if libc::getppid() != parent {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
            }
            // Some numbers have no action to set. Actions before the mask: no handler of this
            // process may run in the child.
            for signal in SIGNALS.filter(|signal| *signal != libc::SIGHUP) {
                libc::signal(signal, libc::SIG_DFL);
            }
            let mut none: libc::sigset_t = std::mem::zeroed();
            checked(libc::sigemptyset(&mut none))?;
            checked(libc::sigprocmask(
                libc::SIG_SETMASK,
                &none,
                std::ptr::null_mut(),
            ))?;
            if let Some(files) = files {
                checked(libc::setrlimit(libc::RLIMIT_NOFILE, &files))?;
            }
            close_on_exec();
            Ok(())
        });
    }
}

/// Marks every descriptor from 3 on to be closed by exec: libraries open some without the mark.
fn close_on_exec() {
    let flag = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
    // SAFETY: plain system calls; a number that is no descriptor is an error without effect.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, flag) != 0 {
            for descriptor in 3..DESCRIPTORS {
                libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
    }
}

/// Keeps the limit of open files for the children. To be called before this process raises it.
pub(super) fn remember_open_files() {
    if let Ok(limit) = open_files() {
        OPEN_FILES.get_or_init(|| limit);
    }
}

fn checked(result: libc::c_int) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
