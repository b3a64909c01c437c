//! An eventfd: one thread makes it readable, a second thread sleeps on it.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    time::Duration,
};

/// A non-blocking eventfd.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Makes an eventfd that is not readable.
    ///
    /// # Errors
    /// The kernel has no descriptor left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: `eventfd` takes no pointers; this function owns the descriptor that it returns.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above returned `fd`, and nothing else owns it.
        Ok(EventFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes the descriptor readable. Never blocks.
    pub fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the call reads 8 bytes of a live array. The result does not matter: a counter
        // that is full (EAGAIN) is readable already.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), 8) };
    }

    /// Makes the descriptor unreadable. Never blocks.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the call writes 8 bytes of a live array; EAGAIN means that the counter was 0.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
    }
}

impl EventFd {
    /// Waits until the descriptor is readable, for at most `most`; true if it is readable.
    pub fn wait(&self, most: Duration) -> bool {
        let mut fd = libc::pollfd {
            fd: self.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // Rounded up: a wait of less than a millisecond must not become a loop without sleep.
        let ms = i32::try_from(most.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        // SAFETY: one structure, which lives through the call.
        unsafe { libc::poll(&raw mut fd, 1, ms) == 1 }
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(event: &EventFd) -> bool {
        event.wait(Duration::ZERO)
    }

    #[test]
    fn it_is_readable_from_signal_to_clear() {
        let event = EventFd::new().expect("a descriptor");
        assert!(!is_readable(&event));
        event.signal();
        event.signal();
        assert!(is_readable(&event));
        event.clear();
        assert!(!is_readable(&event));
        event.clear();
    }
}
