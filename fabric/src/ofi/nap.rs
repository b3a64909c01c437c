//! A timer to sleep on where a provider has no wait descriptor: it wakes the thread to poll.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

/// Duration of the first nap in ns; each nap without an arrival doubles the next.
const SHORTEST_NS: i64 = 50_000;
/// Longest nap in ns, and so the longest time that an arrival waits for a poll.
const LONGEST_NS: i64 = 1_000_000;

/// A timer descriptor with exponential back-off.
#[derive(Debug)]
pub(super) struct Nap {
    timer: OwnedFd,
    next_ns: i64,
}

impl Nap {
    /// Creates an unarmed timer.
    ///
    /// # Errors
    /// The error of `timerfd_create`, such as too many open descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: `timerfd_create` takes no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Nap {
            // SAFETY: `timerfd_create` has just returned `fd`, which has no other owner.
            timer: unsafe { OwnedFd::from_raw_fd(fd) },
            next_ns: SHORTEST_NS,
        })
    }

    /// Resets the back-off: the next nap is the shortest.
    pub(crate) fn reset(&mut self) {
        self.next_ns = SHORTEST_NS;
    }

    /// Arms the timer: the descriptor becomes readable at the end of the nap.
    pub(crate) fn begin(&mut self) {
        let zero = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let spec = libc::itimerspec {
            it_interval: zero,
            it_value: libc::timespec {
                tv_sec: 0,
                tv_nsec: self.next_ns,
            },
        };
        // SAFETY: `self` owns the timer, and `spec` lives through the call. Arming clears an unread
        // expiry, so the next expiry is a new edge.
        unsafe {
            libc::timerfd_settime(
                self.timer.as_raw_fd(),
                0,
                &raw const spec,
                std::ptr::null_mut(),
            )
        };
        self.next_ns = (self.next_ns * 2).min(LONGEST_NS);
    }
}

impl AsRawFd for Nap {
    fn as_raw_fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nap_ends_with_an_edge_and_they_grow() {
        let mut nap = Nap::new().expect("a timer");
        let mut poll = mio::Poll::new().expect("poll");
        let fd = nap.as_raw_fd();
        let interest = mio::Interest::READABLE;
        let mut source = mio::unix::SourceFd(&fd);
        poll.registry()
            .register(&mut source, mio::Token(0), interest)
            .expect("registered");
        let mut events = mio::Events::with_capacity(1);
        for _ in 0..20 {
            nap.begin();
            poll.poll(&mut events, Some(std::time::Duration::from_secs(20)))
                .expect("polled");
            assert!(!events.is_empty(), "slept on");
        }
        assert_eq!(nap.next_ns, LONGEST_NS);
        nap.reset();
        assert_eq!(nap.next_ns, SHORTEST_NS);
    }
}
