//! Sleeping where a provider has no descriptor to sleep on: a timer wakes the thread, which looks.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

/// The first look comes this soon, and each that finds nothing doubles it.
const SHORTEST_NS: i64 = 50_000;
/// The longest that a message can lie unseen.
const LONGEST_NS: i64 = 1_000_000;

/// See the module.
#[derive(Debug)]
pub(super) struct Nap {
    timer: OwnedFd,
    next_ns: i64,
}

impl Nap {
    /// One that is over.
    ///
    /// # Errors
    /// No descriptor could be had.
    pub fn new() -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: a plain system call; the descriptor it returns is ours.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Nap {
            // SAFETY: `fd` was just made and nothing else owns it.
            timer: unsafe { OwnedFd::from_raw_fd(fd) },
            next_ns: SHORTEST_NS,
        })
    }

    /// Something came: the next nap is short.
    pub fn found_something(&mut self) {
        self.next_ns = SHORTEST_NS;
    }

    /// The descriptor becomes readable when the nap is over.
    pub fn begin(&mut self) {
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
        // SAFETY: the timer is ours, and the structure lives through the call. Setting it takes
        // back an expiry that nobody has read, so that the next one is an edge.
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
        nap.found_something();
        assert_eq!(nap.next_ns, SHORTEST_NS);
    }
}
