//! SIGINT and SIGTERM as a value that a thread waits for.

/// The two signals, blocked in this thread and in all threads that it starts later.
#[derive(Clone, Copy)]
pub struct Blocked(libc::sigset_t);

/// Blocks SIGINT and SIGTERM. Call before the first thread starts.
pub fn block() -> Blocked {
    // SAFETY: `sigemptyset` makes the zeroed set valid before any call reads it; the set outlives
    // the calls.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        set
    };
    let signals = Blocked(set);
    signals.mask(libc::SIG_BLOCK);
    signals
}

impl Blocked {
    /// Gives the signals their default again, which ends the process.
    pub fn unblock(&self) {
        self.mask(libc::SIG_UNBLOCK);
    }

    /// Waits for a signal and returns its number.
    pub fn wait(&self) -> i32 {
        let mut signal = 0;
        // SAFETY: `block` initialised the set; `signal` lives through the call.
        unsafe { libc::sigwait(&self.0, &mut signal) };
        signal
    }

    fn mask(&self, how: libc::c_int) {
        // SAFETY: `block` initialised the set, which outlives the call.
        unsafe { libc::pthread_sigmask(how, &self.0, std::ptr::null_mut()) };
    }
}
