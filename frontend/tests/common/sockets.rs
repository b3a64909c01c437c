//! Sockets of another process, to break one of its connections without an effect on the process.
//! Needs root, or permission to trace the process.

use std::{
    fs, io,
    net::{Shutdown, SocketAddr, TcpStream},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

/// Returns the connections that process `id` accepted on `port`.
/// Error: the system refuses access to the process or its descriptors.
pub fn accepted(id: u32, port: u16) -> io::Result<Vec<TcpStream>> {
    of_process(id, |[local, _]| local.port() == port)
}

/// Returns the connections of process `id` whose local and remote address `keep` accepts.
/// Error: as for [`accepted`].
pub fn of_process(id: u32, keep: impl Fn([SocketAddr; 2]) -> bool) -> io::Result<Vec<TcpStream>> {
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
        if let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr())
            && keep([local, peer])
        {
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

/// Ends a connection by a reset: the process that has it gets an error, and its peer a packet.
pub fn reset(stream: &TcpStream) {
    // SAFETY: all-zero bytes are a valid address, of the family AF_UNSPEC.
    let none: libc::sockaddr = unsafe { std::mem::zeroed() };
    let length = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: the address lives during the call, which copies it. It may fail: the connection may
    // be lost already.
    unsafe { libc::connect(stream.as_raw_fd(), &none, length) };
}
