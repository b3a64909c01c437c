//! SIGINT and SIGTERM: the first asks for an orderly
//! end, a second one ends the process as it always does.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// The signal that came; 0 before.
static CAME: AtomicI32 = AtomicI32::new(0);

extern "C" fn came(signal: libc::c_int) {
    CAME.store(signal, Ordering::Relaxed);
}

/// SIGUSR1 came.
static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn asked(_: libc::c_int) {
    ASKED.store(true, Ordering::Relaxed);
}

/// Listens to SIGUSR1 too: somebody wants to see what the flight recorder has.
pub fn listen_for_dumps() {
    // SAFETY: as in `listen`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = asked as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
}

/// Whether SIGUSR1 came since the last call.
pub fn dump_asked() -> bool {
    ASKED.swap(false, Ordering::Relaxed)
}

/// Begins to listen.
pub fn listen() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: all-zero is a valid sigaction with an empty mask; the
        // handler does nothing but store to an atomic, which a signal handler
        // may. SA_RESETHAND gives the second signal its default meaning.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = came as *const () as usize;
            action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// The signal that asked for an end, by name.
pub fn requested() -> Option<&'static str> {
    match CAME.load(Ordering::Relaxed) {
        0 => None,
        libc::SIGTERM => Some("SIGTERM"),
        _ => Some("SIGINT"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_noticed() {
        listen_for_dumps();
        // SAFETY: the handler for it is installed.
        unsafe { libc::raise(libc::SIGUSR1) };
        assert_eq!((dump_asked(), dump_asked()), (true, false));
        listen();
        assert_eq!(requested(), None);
        // SAFETY: the handler for it is installed.
        unsafe { libc::raise(libc::SIGTERM) };
        assert_eq!(requested(), Some("SIGTERM"));
    }
}
