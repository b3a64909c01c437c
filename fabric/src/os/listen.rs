//! Sockets that listen for TCP connections.

use std::{io, net::SocketAddr};

use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket};

use super::set_congestion;

/// Connections that the system queues until `accept`: enough for a burst while the accepting thread
/// waits for a core. `net.core.somaxconn` is a second limit.
const BACKLOG: u32 = 4_096;

/// Listens on `address`. Accepted connections use `congestion`, or the system's default for `None`.
///
/// # Errors
/// A system call fails: the address is in use or not local, or `congestion` is not allowed.
pub fn listen(address: SocketAddr, congestion: Option<&str>) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    set_congestion(&SockRef::from(&socket), congestion)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
