//! Another process's sockets, to break one of its connections and leave the process alone. Needs
//! root, or leave to trace the process.

use std::{
    fs, io,
    io::Write,
    net::{Shutdown, TcpStream},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

/// The connections that process `id` accepted on `port`.
///
/// # Errors
/// What the system says where it does not hand them over.
pub fn accepted(id: u32, port: u16) -> io::Result<Vec<TcpStream>> {
    // SAFETY: two numbers go in, a new descriptor or -1 comes back.
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
            // Closed meanwhile.
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
    // SAFETY: three numbers go in, a new descriptor or -1 comes back.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

fn owned(descriptor: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(descriptor) {
        // SAFETY: the kernel has just made it, and nobody else knows it.
        Ok(number) if number >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends a connection in both directions.
pub fn end(stream: &TcpStream) {
    // It may have been lost already.
    let _ = stream.shutdown(Shutdown::Both);
}

/// Sends what is no frame behind the frames that the process has sent.
pub fn garble(mut stream: &TcpStream) {
    let _ = stream.write_all(&[0xa5; 64]);
}
