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
        atomic::{
            AtomicBool, AtomicI32, AtomicPtr, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
    time::Duration,
};

use fabric::clock::now_ns;

use crate::{live, loadgen::exit::ExitCode, outcome::report::INVALID_FILE};

/// Interval between looks at the signals.
const TICK: Duration = Duration::from_millis(20);
/// Signals within this time of the first count as the first.
const SAME: Duration = Duration::from_secs(1);
/// Text of the file INVALID, until the end of the run writes another text.
const WORDS: &[u8] = b"interrupted by a signal: the run did not come to its end\n";

/// Number of the first signal; 0 before it.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Time of the first signal, on [`fabric::clock`].
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
/// Paths for the signal handler; null without a run.
static FILES: AtomicPtr<RunFiles> = AtomicPtr::new(null_mut());

struct RunFiles {
    mark: CString,
    key: CString,
}

extern "C" fn handle_signal(signal: libc::c_int) {
    // SAFETY: __errno_location is valid for the life of the thread.
    let errno = unsafe { *libc::__errno_location() };
    let now = now_ns();
    // SAFETY: `begin` stores a leaked allocation, which is never freed.
    let files = unsafe { FILES.load(Acquire).as_ref() };
    let first = FIRST_NS.load(Relaxed);
    if SIGNAL.compare_exchange(0, signal, Relaxed, Relaxed).is_ok() {
        FIRST_NS.store(now, Relaxed);
        if let Some(files) = files {
            write_mark(files);
        }
    } else if first > 0 && Duration::from_nanos(now.saturating_sub(first)) > SAME {
        // SAFETY: unlink and _exit are async-signal-safe; the path ends with 0.
        unsafe {
            if let Some(files) = files {
                libc::unlink(files.key.as_ptr());
            }
            libc::_exit(i32::from(ExitCode::Interrupted as u8))
        }
    }
    // SAFETY: __errno_location is valid for the life of the thread.
    unsafe { *libc::__errno_location() = errno };
}

/// Writes the file INVALID, with async-signal-safe calls only.
fn write_mark(files: &RunFiles) {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
    // SAFETY: the path ends with 0, the buffer is static, this function owns the descriptor.
    unsafe {
        let file = libc::open(files.mark.as_ptr(), flags, 0o644);
        if file >= 0 {
            libc::write(file, WORDS.as_ptr().cast(), WORDS.len());
            libc::close(file);
        }
    }
}

/// Installs the signal handlers. A signal ignored already, as SIGHUP under `nohup`, stays ignored.
pub fn listen() {
    // The first reading initializes the clock; later ones are async-signal-safe.
    now_ns();
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

/// While this value lives, the first signal marks its run INVALID. Drop it when the run's end is
/// known, before the folder is released.
#[must_use]
pub struct SignalWatch(Arc<AtomicBool>);

impl SignalWatch {
    /// Makes the first signal mark the run in `folder`. A signal during connection or loading also
    /// calls `end`, on a thread of its own; `end` does not return.
    pub fn begin(folder: &Path, end: impl FnOnce(&str) + Send + 'static) -> io::Result<Self> {
        let path = |name| CString::new(folder.join(name).as_os_str().as_bytes());
        let (mark, key) = (path(INVALID_FILE)?, path(live::KEY_FILE)?);
        let files = &*Box::leak(Box::new(RunFiles { mark, key }));
        FILES.store(std::ptr::from_ref(files).cast_mut(), Release);
        let watch = SignalWatch(Arc::default());
        let is_over = watch.0.clone();
        if requested().is_some() {
            write_mark(files);
        }
        let wait = move || {
            while !is_over.load(Acquire) {
                if let Some(signal) = requested() {
                    return end(signal);
                }
                thread::sleep(TICK);
            }
        };
        let thread = thread::Builder::new().name("interrupt".to_owned());
        thread.spawn(wait)?;
        Ok(watch)
    }

    /// Stops later signals from calling `end`: the run's own loop then ends the run.
    pub fn measure(&self) {
        self.0.store(true, Release);
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        FILES.store(null_mut(), Release);
        self.measure();
    }
}

/// Returns the name of the received signal, if any.
pub fn requested() -> Option<&'static str> {
    match SIGNAL.load(Relaxed) {
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
    fn the_first_signal_marks_the_folder_repeats_change_nothing_and_a_late_one_ends_the_process() {
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        listen();
        // SAFETY: the signal is ignored.
        unsafe { libc::raise(libc::SIGINT) };
        assert_eq!(requested(), None);
        let folder = tempfile::tempdir().expect("a folder");
        let watch = SignalWatch::begin(folder.path(), |_| panic!("it measures")).expect("a thread");
        watch.measure();
        // `timeout` sends two signals, and a closed terminal one more. The handler runs in `raise`.
        for signal in [libc::SIGTERM, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the handler for this signal is installed.
            unsafe { libc::raise(signal) };
            assert_eq!(requested(), Some("SIGTERM"));
            let words = std::fs::read(folder.path().join(INVALID_FILE)).expect("marked");
            assert_eq!(words, WORDS);
        }
        let key = folder.path().join(live::KEY_FILE);
        std::fs::write(&key, "").expect("written");
        thread::sleep(SAME);
        // SAFETY: the child, whose only thread is this one, makes only async-signal-safe calls.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::raise(libc::SIGTERM);
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert!(libc::WIFEXITED(status));
        assert_eq!(libc::WEXITSTATUS(status), 130);
        assert!(!key.exists() && folder.path().join(INVALID_FILE).exists());
        drop(watch);
        assert!(FILES.load(Relaxed).is_null(), "a mark without a run");
    }
}
