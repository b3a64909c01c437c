//! SIGINT, SIGTERM and SIGHUP (lost terminal): the first signal marks the run's folder INVALID and
//! requests an orderly end. Signals within one second count as the first, since `timeout` sends
//! two. A later signal ends the process at once.

use std::{
    ffi::CString,
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
    ptr::null_mut,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crate::{exit::ExitCode, live, outcome::report::INVALID_FILE};

/// Poll interval for signals.
const TICK: Duration = Duration::from_millis(20);
/// Signals within this time of the first count as the first.
const SAME: Duration = Duration::from_secs(1);
/// Text of the mark until the run's end writes its own.
const WORDS: &[u8] = b"interrupted by a signal: the run did not come to its end\n";

/// Number of the first signal; 0 before it.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Time of the first signal, in nanoseconds of the monotonic clock.
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
/// Files for the signal handler; null without a run.
static RUN: AtomicPtr<RunPaths> = AtomicPtr::new(null_mut());

/// Paths of two files in a run's folder.
struct RunPaths {
    invalid: CString,
    key: CString,
}

extern "C" fn handle_signal(signal: libc::c_int) {
    // SAFETY: __errno_location is valid for the life of the thread.
    let errno = unsafe { *libc::__errno_location() };
    let first = SIGNAL.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
    // SAFETY: `mark` stores a leaked allocation in RUN, which is never freed.
    let run = unsafe { RUN.load(Ordering::Acquire).as_ref() };
    if first.is_ok() {
        FIRST_NS.store(now_ns(), Ordering::Relaxed);
        if let Some(run) = run {
            put(run);
        }
    } else {
        let since = now_ns().saturating_sub(FIRST_NS.load(Ordering::Relaxed));
        if Duration::from_nanos(since) > SAME && FIRST_NS.load(Ordering::Relaxed) > 0 {
            // SAFETY: unlink and _exit are async-signal-safe; the path ends with 0.
            unsafe {
                if let Some(run) = run {
                    libc::unlink(run.key.as_ptr());
                }
                libc::_exit(i32::from(ExitCode::Interrupted as u8))
            }
        }
    }
    // SAFETY: __errno_location is valid for the life of the thread.
    unsafe { *libc::__errno_location() = errno };
}

/// Writes the mark, with async-signal-safe calls only.
fn put(run: &RunPaths) {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
    // SAFETY: the path ends with 0, the buffer is static, this function owns the descriptor.
    unsafe {
        let file = libc::open(run.invalid.as_ptr(), flags, 0o644);
        if file >= 0 {
            libc::write(file, WORDS.as_ptr().cast(), WORDS.len());
            libc::close(file);
        }
    }
}

/// Reads the monotonic clock, which is async-signal-safe.
fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a local value.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec as u64)
}

/// While this value lives, the first signal marks its run INVALID.
#[must_use]
pub struct FolderMark(());

impl Drop for FolderMark {
    fn drop(&mut self) {
        RUN.store(null_mut(), Ordering::Release);
    }
}

/// Makes the first signal mark the run in `folder` INVALID until the returned mark is dropped. Drop
/// the mark when the run's end is known, before the folder is released.
pub fn mark(folder: &Path) -> FolderMark {
    let path = |name| CString::new(folder.join(name).as_os_str().as_bytes());
    // An existing folder's name contains no 0.
    if let (Ok(invalid), Ok(key)) = (path(INVALID_FILE), path(live::KEY_FILE)) {
        let run = Box::new(RunPaths { invalid, key });
        RUN.store(Box::into_raw(run), Ordering::Release);
        if requested().is_some() {
            // SAFETY: the allocation in RUN is never freed.
            if let Some(run) = unsafe { RUN.load(Ordering::Acquire).as_ref() } {
                put(run);
            }
        }
    }
    FolderMark(())
}

/// Installs the handlers. A signal that is ignored, such as SIGHUP under `nohup`, stays ignored.
pub fn listen() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all-zero is a valid sigaction with an empty mask; the handler makes only
        // async-signal-safe calls.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action);
            if action.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            action = std::mem::zeroed();
            action.sa_sigaction = handle_signal as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, null_mut());
        }
    }
}

/// Watches for signals until the run's own loop does. A signal during connection or loading calls
/// `end`, which does not return.
pub struct Early(Arc<AtomicBool>);

impl Early {
    /// Starts the watching thread.
    pub fn look(end: impl FnOnce(&str) + Send + 'static) -> io::Result<Early> {
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        thread::Builder::new()
            .name("interrupt".to_owned())
            .spawn(move || {
                while !seen.load(Ordering::Acquire) {
                    if let Some(signal) = requested() {
                        return end(signal);
                    }
                    thread::sleep(TICK);
                }
            })?;
        Ok(Early(over))
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Returns the name of the received signal, if any.
pub fn requested() -> Option<&'static str> {
    match SIGNAL.load(Ordering::Relaxed) {
        0 => None,
        libc::SIGTERM => Some("SIGTERM"),
        libc::SIGHUP => Some("SIGHUP"),
        _ => Some("SIGINT"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_marks_the_folder_unless_it_was_ignored_and_repeats_change_nothing() {
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        listen();
        // SAFETY: the signal is ignored.
        unsafe { libc::raise(libc::SIGINT) };
        assert_eq!(requested(), None);
        let folder = tempfile::tempdir().expect("a folder");
        let marked = mark(folder.path());
        // `timeout` sends two signals, and a closed terminal one more.
        for signal in [libc::SIGTERM, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the handler for this signal is installed.
            unsafe { libc::raise(signal) };
            assert_eq!(requested(), Some("SIGTERM"));
        }
        let words = std::fs::read(folder.path().join(INVALID_FILE)).expect("marked");
        assert_eq!(words, WORDS);
        drop(marked);
        assert!(
            RUN.load(Ordering::Relaxed).is_null(),
            "it marks what is no run's"
        );
    }
}
