//! How punctual sleeps are.

/// Lets this thread, and those that it starts from now on, sleep as long as they ask for: the
/// system's default adds up to 50 us to every sleep. `false` where the system refuses.
pub fn sleep_punctually() -> bool {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_says_what_it_was_told() {
        std::thread::spawn(|| {
            assert!(sleep_punctually());
            // SAFETY: PR_GET_TIMERSLACK touches no memory.
            let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) };
            assert_eq!(slack, 1);
        })
        .join()
        .expect("no panic");
    }
}
