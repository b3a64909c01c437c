//! SIGINT and SIGTERM: the first asks for an orderly
//! end, a second one ends the process as it always does.

use std::sync::atomic::{AtomicI32, Ordering};

/// The signal that came; 0 before.
static CAME: AtomicI32 = AtomicI32::new(0);

extern "C" fn came(signal: libc::c_int) {
    CAME.store(signal, Ordering::Relaxed);
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
        listen();
        assert_eq!(requested(), None);
        // SAFETY: the handler for it is installed.
        unsafe { libc::raise(libc::SIGTERM) };
        assert_eq!(requested(), Some("SIGTERM"));
    }
}
