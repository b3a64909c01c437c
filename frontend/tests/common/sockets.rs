//! Sockets of another process, to break one of its connections without an effect on the process.
//! Needs root, or permission to trace the process.

use std::{
    fs, io,
    net::{Shutdown, TcpStream},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

/// Returns the connections that process `id` accepted on `port`.
/// Error: the system refuses access to the process or its descriptors.
pub fn accepted(id: u32, port: u16) -> io::Result<Vec<TcpStream>> {
    // SAFETY: `pidfd_open` takes two numbers and returns a new descriptor or -1.
    let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, id, 0) })?;
    let mut own = Vec::new();
    for entry in fs::read_dir(format!("/proc/{id}/fd"))?.flatten() {
        let to = fs::read_link(entry.path()).unwrap_or_default();
        let number = entry.file_name().to_string_lossy().parse::<RawFd>();
        let (true, Ok(number)) = (to.to_string_lossy().starts_with("socket:"), number) else {
            continue;
        };
        let stream = match copied(&process, number) {
            Ok(descriptor) => TcpStream::from(descriptor),
            // The process has closed this descriptor meanwhile.
            Err(e) if e.raw_os_error() == Some(libc::EBADF) => continue,
            Err(e) => return Err(e),
        };
        if stream.local_addr().is_ok_and(|a| a.port() == port) && stream.peer_addr().is_ok() {
            own.push(stream);
        }
    }
    Ok(own)
}

fn copied(process: &OwnedFd, number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: `pidfd_getfd` takes three numbers and returns a new descriptor or -1.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

fn owned(descriptor: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(descriptor) {
        // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
        Ok(number) if number >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        _ => Err(io::Error::last_os_error()),
    }
}

pub fn end(stream: &TcpStream) {
    // The connection may be lost already.
    let _ = stream.shutdown(Shutdown::Both);
}
