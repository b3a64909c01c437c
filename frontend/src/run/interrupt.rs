//! SIGINT, SIGTERM and SIGHUP (lost terminal): the first signal marks the run's folder INVALID and
//! requests an orderly end. Signals within one second count as the first, since `timeout` sends
//! two. A later signal ends the process at once.

use std::{
    fs, io,
    path::Path,
    ptr::null_mut,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use fabric::clock::now_ns;

use crate::{live, loadgen::exit::ExitCode, outcome::report::INVALID_FILE};

/// Poll interval for signals.
const TICK: Duration = Duration::from_millis(20);
/// Signals within this time of the first count as the first.
const SAME: Duration = Duration::from_secs(1);
/// Text of the file INVALID, until the end of the run writes another text.
const WORDS: &str = "interrupted by a signal: the run did not come to its end\n";

/// Number of the first signal; 0 before it.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Time of the first signal, on [`fabric::clock`].
static FIRST_NS: AtomicU64 = AtomicU64::new(0);

extern "C" fn handle_signal(signal: libc::c_int) {
    let now = now_ns();
    if SIGNAL.compare_exchange(0, signal, Relaxed, Relaxed).is_ok() {
        FIRST_NS.store(now, Relaxed);
        return;
    }
    let first = FIRST_NS.load(Relaxed);
    if first > 0 && Duration::from_nanos(now.saturating_sub(first)) > SAME {
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(i32::from(ExitCode::Interrupted as u8)) }
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

/// A thread that waits for the first signal while this value lives. Drop it when the run's end is
/// known, before the folder is released.
#[must_use]
pub struct SignalWatch {
    over: Arc<AtomicBool>,
    measures: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SignalWatch {
    /// Starts the thread. The first signal marks the run in `folder` INVALID and removes the live
    /// page's key. A signal during connection or loading then calls `end`, which does not return.
    pub fn begin(folder: &Path, end: impl FnOnce(&str) + Send + 'static) -> io::Result<Self> {
        let [over, measures] = [(); 2].map(|()| Arc::<AtomicBool>::default());
        let (is_over, is_measured) = (over.clone(), measures.clone());
        let [mark, key] = [INVALID_FILE, live::KEY_FILE].map(|name| folder.join(name));
        let wait = move || {
            while !is_over.load(Relaxed) {
                if let Some(signal) = requested() {
                    // Ignore the errors: the end of the run writes the file INVALID too.
                    let _ = fs::write(mark, WORDS);
                    let _ = fs::remove_file(key);
                    if !is_measured.load(Relaxed) {
                        end(signal);
                    }
                    return;
                }
                thread::sleep(TICK);
            }
        };
        let thread = thread::Builder::new().name("interrupt".to_owned());
        Ok(SignalWatch {
            over,
            measures,
            thread: Some(thread.spawn(wait)?),
        })
    }

    /// Stops later signals from calling `end`: the run's own loop then ends the run.
    pub fn measure(&self) {
        self.measures.store(true, Relaxed);
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        // After the join the thread no longer writes the file INVALID.
        let _ = self.thread.take().map(JoinHandle::join);
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
    fn the_first_signal_marks_the_folder_unless_it_was_ignored_and_repeats_change_nothing() {
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        listen();
        // SAFETY: the signal is ignored.
        unsafe { libc::raise(libc::SIGINT) };
        assert_eq!(requested(), None);
        let folder = tempfile::tempdir().expect("a folder");
        let watch = SignalWatch::begin(folder.path(), |_| panic!("it measures")).expect("a thread");
        watch.measure();
        // `timeout` sends two signals, and a closed terminal one more.
        for signal in [libc::SIGTERM, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the handler for this signal is installed.
            unsafe { libc::raise(signal) };
            assert_eq!(requested(), Some("SIGTERM"));
        }
        let mark = folder.path().join(INVALID_FILE);
        while fs::read_to_string(&mark).is_ok_and(|words| words != WORDS) || !mark.exists() {
            thread::sleep(TICK);
        }
        drop(watch);
    }
}
