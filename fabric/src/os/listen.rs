//! Sockets that listen for TCP connections.

use std::{io, net::SocketAddr};

use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket};

use super::set_congestion;

/// Peers that the system keeps until they are accepted: a flood's for the time that the accepting
/// thread may have to wait for a core. The system keeps no more than `net.core.somaxconn`.
const BACKLOG: u32 = 4_096;

/// Listens for connections, which get this congestion control; the system's own with `None`.
///
/// # Errors
/// The system's.
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
