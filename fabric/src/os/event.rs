//! A descriptor that one thread makes readable and another sleeps on.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

/// An eventfd, non-blocking.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// One that is not readable.
    ///
    /// # Errors
    /// No descriptor could be had.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a plain system call; the descriptor it returns is ours.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just made and nothing else owns it.
        Ok(EventFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes it readable.
    pub fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes of a live array; a full counter (EAGAIN) is a signal too.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), 8) };
    }

    /// Makes it not readable.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight bytes of a live array; EAGAIN means there was nothing to clear.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
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
        let mut fd = libc::pollfd {
            fd: event.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure, which lives through the call.
        unsafe { libc::poll(&raw mut fd, 1, 0) == 1 }
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
