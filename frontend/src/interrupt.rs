//! SIGINT, SIGTERM and SIGHUP (the terminal is gone): the first asks for an orderly
//! end, a second one ends the process as it always does.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    thread,
    time::Duration,
};

/// How often signals are looked for.
const TICK: Duration = Duration::from_millis(20);

/// The signal that came; 0 before.
static CAME: AtomicI32 = AtomicI32::new(0);

extern "C" fn came(signal: libc::c_int) {
    CAME.store(signal, Ordering::Relaxed);
}

/// Begins to listen. A signal that is ignored, as `nohup` has SIGHUP, stays so.
pub fn listen() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all-zero is a valid sigaction with an empty mask; the
        // handler does nothing but store to an atomic, which a signal handler
        // may. SA_RESETHAND gives the second signal its default meaning.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action);
            if action.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            action = std::mem::zeroed();
            action.sa_sigaction = came as *const () as usize;
            action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
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
    fn a_signal_is_noticed_unless_it_was_ignored_before() {
        // SAFETY: to ignore a signal runs no code.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        listen();
        // SAFETY: it is ignored.
        unsafe { libc::raise(libc::SIGINT) };
        assert_eq!(requested(), None);
        for (signal, name) in [(libc::SIGTERM, "SIGTERM"), (libc::SIGHUP, "SIGHUP")] {
            // SAFETY: the handler for it is installed.
            unsafe { libc::raise(signal) };
            assert_eq!(requested(), Some(name));
        }
    }
}
