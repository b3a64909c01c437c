//! SIGINT, SIGTERM and SIGHUP (the terminal is gone): the first marks the run's folder INVALID and
//! asks for an orderly end. One that comes within a second is the same one again, as `timeout`
//! sends two; a later one ends the process at once.

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

use crate::{live, outcome::report::INVALID_FILE, run::exit::ExitCode};

/// How often signals are looked for.
const TICK: Duration = Duration::from_millis(20);
/// Signals this soon after the first are that one again.
const SAME: Duration = Duration::from_secs(1);
/// What the mark says until the run's end says more.
const WORDS: &[u8] = b"interrupted by a signal: the run did not come to its end\n";

/// The signal that came; 0 before.
static CAME: AtomicI32 = AtomicI32::new(0);
/// When the first came, in nanoseconds of the monotonic clock.
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
/// What a signal marks; null where no run is under way.
static RUN: AtomicPtr<Run> = AtomicPtr::new(null_mut());

/// Files of a run's folder.
struct Run {
    invalid: CString,
    key: CString,
}

extern "C" fn came(signal: libc::c_int) {
    // SAFETY: __errno_location is valid for the life of the thread.
    let errno = unsafe { *libc::__errno_location() };
    let first = CAME.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
    // SAFETY: what `mark` puts there is never freed.
    let run = unsafe { RUN.load(Ordering::Acquire).as_ref() };
    if first.is_ok() {
        FIRST_NS.store(now_ns(), Ordering::Relaxed);
        if let Some(run) = run {
            put(run);
        }
    } else {
        let since = now_ns().saturating_sub(FIRST_NS.load(Ordering::Relaxed));
        if Duration::from_nanos(since) > SAME && FIRST_NS.load(Ordering::Relaxed) > 0 {
            // SAFETY: a signal handler may call both; the path ends with 0.
            unsafe {
                if let Some(run) = run {
                    libc::unlink(run.key.as_ptr());
                }
                libc::_exit(i32::from(ExitCode::Interrupted as u8))
            }
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Writes the mark, by nothing but what a signal handler may call.
fn put(run: &Run) {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
    // SAFETY: the path ends with 0, the bytes are there, the descriptor is this function's own.
    unsafe {
        let file = libc::open(run.invalid.as_ptr(), flags, 0o644);
        if file >= 0 {
            libc::write(file, WORDS.as_ptr().cast(), WORDS.len());
            libc::close(file);
        }
    }
}

/// The monotonic clock, which a signal handler may read.
fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a value of this function's.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec as u64)
}

/// As long as this lives, the first signal marks its run INVALID.
#[must_use]
pub struct Mark(());

impl Drop for Mark {
    fn drop(&mut self) {
        RUN.store(null_mut(), Ordering::Release);
    }
}

/// From now on the first signal marks the run in `folder` INVALID, until the mark is dropped: once
/// the run's end is known, and before the folder is given back.
pub fn mark(folder: &Path) -> Mark {
    let path = |name| CString::new(folder.join(name).as_os_str().as_bytes());
    // No folder that was made has a 0 in its name.
    if let (Ok(invalid), Ok(key)) = (path(INVALID_FILE), path(live::KEY_FILE)) {
        let run = Box::new(Run { invalid, key });
        RUN.store(Box::into_raw(run), Ordering::Release);
        if requested().is_some() {
            // SAFETY: as in the handler.
            if let Some(run) = unsafe { RUN.load(Ordering::Acquire).as_ref() } {
                put(run);
            }
        }
    }
    Mark(())
}

/// Begins to listen. A signal that is ignored, as `nohup` has SIGHUP, stays so.
pub fn listen() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all-zero is a valid sigaction with an empty mask; the
        // handler does nothing but what a signal handler may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action);
            if action.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            action = std::mem::zeroed();
            action.sa_sigaction = came as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, null_mut());
        }
    }
}

/// Until the run itself looks for signals: one that comes while accelerators are connected to, or
/// samples are loaded, calls `end`, which does not come back.
pub struct Early(Arc<AtomicBool>);

impl Early {
    /// Begins to look, on a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started.
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

/// The signal that asked for an end, by name.
pub fn requested() -> Option<&'static str> {
    match CAME.load(Ordering::Relaxed) {
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
        // SAFETY: to ignore a signal runs no code.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        listen();
        // SAFETY: it is ignored.
        unsafe { libc::raise(libc::SIGINT) };
        assert_eq!(requested(), None);
        let folder = tempfile::tempdir().expect("a folder");
        let marked = mark(folder.path());
        // `timeout` sends two, and a terminal that goes one more.
        for signal in [libc::SIGTERM, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the handler for it is installed.
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
