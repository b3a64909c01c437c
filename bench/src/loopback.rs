//! Loopback connections for plain sockets, with the congestion control of the library's
//! connections.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use anyhow::Result;
use fabric::os::{Congestion, set_congestion};
use socket2::{Domain, SockRef, Socket, Type};

/// Makes `n` connections, and returns both ends of each. Sets the congestion control before they
/// connect; accepted connections inherit the listener's.
pub fn pairs(n: usize, congestion: &Congestion) -> Result<Vec<(TcpStream, TcpStream)>> {
    let congestion = congestion.choose()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    set_congestion(&SockRef::from(&listener), congestion.as_deref())?;
    let to = listener.local_addr()?.into();
    let pair = |_| {
        let near = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        set_congestion(&near, congestion.as_deref())?;
        near.connect(&to)?;
        Ok((near.into(), listener.accept()?.0))
    };
    (0..n).map(pair).collect()
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
