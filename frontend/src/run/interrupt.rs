//! SIGINT, SIGTERM and SIGHUP (lost terminal): the first signal ends the process in order, as
//! [`hold`] says at that time. Signals within one second count as the first, since `timeout` sends
//! two. A later signal ends the process at once. Both ends remove the temporary files.

use std::{
    ptr::null_mut,
    sync::{
        Mutex, MutexGuard,
        atomic::{
            AtomicBool, AtomicI32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
    time::Duration,
};

use fabric::clock::now_ns;
use fabric::os::lock;

use super::progress;
use crate::loadgen::exit::ExitCode;

/// Interval between looks at the signals.
const TICK: Duration = Duration::from_millis(20);
/// Signals within this time of the first count as the first.
const SAME: Duration = Duration::from_secs(1);

/// Number of the first signal; 0 before it.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Time of the first signal, on [`fabric::clock`].
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
/// Whether a later signal has come.
static AGAIN: AtomicBool = AtomicBool::new(false);
static ACTION: Mutex<Action> = Mutex::new(Action::Exit);

/// The effect of the first signal.
pub enum Action {
    /// The process ends.
    Exit,
    /// The process ends after this call, which undoes what the process has begun.
    Undo(Box<dyn FnOnce() + Send>),
    /// None: the program asks [`requested`] in a loop.
    Note,
}

extern "C" fn handle_signal(signal: libc::c_int) {
    // SAFETY: __errno_location is valid for the life of the thread.
    let errno = unsafe { *libc::__errno_location() };
    let now = now_ns();
    let first = FIRST_NS.load(Relaxed);
    if SIGNAL.compare_exchange(0, signal, Relaxed, Relaxed).is_ok() {
        FIRST_NS.store(now, Relaxed);
    } else if first > 0 && Duration::from_nanos(now.saturating_sub(first)) > SAME {
        AGAIN.store(true, Release);
    }
    // SAFETY: __errno_location is valid for the life of the thread.
    unsafe { *libc::__errno_location() = errno };
}

/// Installs the signal handlers: the first action of a program. A signal ignored already, as SIGHUP
/// under `nohup`, stays ignored.
pub fn listen() {
    // The first reading initializes the clock; later ones are async-signal-safe.
    now_ns();
    let attending = thread::Builder::new().name("interrupt".to_owned());
    if attending.spawn(attend).is_err() {
        // The signals keep their default, which ends the process.
        return;
    }
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

/// Holds the effect of the first signal, to change it. A signal waits while the guard lives.
pub fn hold() -> MutexGuard<'static, Action> {
    lock(&ACTION)
}

/// Waits for the signals. The first one's work has a thread of its own, as it may take long.
fn attend() {
    let mut first = true;
    while !AGAIN.load(Acquire) {
        if let Some(signal) = requested().filter(|_| first) {
            let ending = thread::Builder::new().name("ending".to_owned());
            first = ending.spawn(move || act(signal)).is_err();
        }
        thread::sleep(TICK);
    }
    end()
}

fn act(signal: &str) {
    let mut action = hold();
    let left = match std::mem::replace(&mut *action, Action::Note) {
        Action::Note => return,
        Action::Exit => "",
        Action::Undo(undo) => {
            undo();
            ": nothing was measured"
        }
    };
    progress::say(&format!("error: interrupted by {signal}{left}"));
    // Others wait for `action` until the process has ended.
    end()
}

fn end() -> ! {
    disk::sweep();
    loadgen_bridge::exit(i32::from(ExitCode::Interrupted.code()))
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
    fn the_first_signal_counts_and_repeats_change_nothing() {
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        *hold() = Action::Note;
        listen();
        // SAFETY: the signal is ignored.
        unsafe { libc::raise(libc::SIGINT) };
        assert_eq!(requested(), None);
        // `timeout` sends two signals, and a closed terminal one more. The handler runs in `raise`.
        for signal in [libc::SIGTERM, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the handler for this signal is installed.
            unsafe { libc::raise(signal) };
            assert_eq!(requested(), Some("SIGTERM"));
        }
        assert!(!AGAIN.load(Acquire));
    }
}
