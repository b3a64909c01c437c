//! Loopback connections for plain sockets, with the congestion control of the library's
//! connections. The functions set the congestion control before the sockets connect.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use anyhow::Result;
use fabric::os::{Congestion, set_congestion};
use socket2::{Domain, SockRef, Socket, Type};

/// Listens on a free loopback port. Accepted connections inherit the congestion control.
pub fn listen(congestion: &Congestion) -> Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    set_congestion(&SockRef::from(&listener), congestion.choose()?.as_deref())?;
    Ok(listener)
}

/// Connects to `to` with `congestion` at the local end.
pub fn connect(to: SocketAddr, congestion: &Congestion) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    set_congestion(&socket, congestion.choose()?.as_deref())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

/// Makes `n` connections, and returns both ends of each.
pub fn pairs(n: usize, congestion: &Congestion) -> Result<Vec<(TcpStream, TcpStream)>> {
    let listener = listen(congestion)?;
    let to = listener.local_addr()?;
    (0..n)
        .map(|_| Ok((connect(to, congestion)?, listener.accept()?.0)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_have_what_was_asked_for() {
        let asked = Congestion::Named("reno".to_owned());
        for (near, far) in pairs(2, &asked).expect("connected") {
            for end in [near, far] {
                let has = SockRef::from(&end).tcp_congestion().expect("asked");
                assert!(has.starts_with(b"reno\0"), "{has:?}");
            }
        }
    }
}
