//! Listening sockets, and the congestion control of the sockets of data connections.
//!
//! BBR, the default of some systems, is made for the internet. BBR paces by its estimate of the
//! path's rate, derived from the bytes that the program sends. Within a machine room at most a
//! connection's slots are in flight, mostly less than the path carries, so the estimate stays too
//! low after a quiet moment. Loopback, 4,608-byte samples (`bench/README.md`): 1.2 million/s with
//! CUBIC or Reno, 0.9 million/s with BBR, 1.15 million/s while BBR is in its startup phase.
//!
//! The choice must precede the connection, and for accepted sockets it must be made on the
//! listening socket: a socket that started with BBR may go on pacing.

use std::{fmt, io, net::SocketAddr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpSocket};

use crate::keys::HELP;

/// Connections that the system queues until `accept`: enough for a burst while the accepting thread
/// waits for a core. `net.core.somaxconn` is a second limit.
const BACKLOG: u32 = 4_096;

/// Longest name that the kernel takes, in bytes (`TCP_CA_NAME_MAX` counts the final zero too).
const MAX_NAME: usize = 15;

/// Replacements of BBR under `auto`: the first that the system allows. Every system allows Reno.
const INSTEAD: [&str; 2] = ["cubic", "reno"];

/// Congestion control that the configuration asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// The system's default, except that BBR is replaced.
    #[default]
    Auto,
    /// The system's default.
    System,
    /// This algorithm, by its name in `net.ipv4.tcp_available_congestion_control`.
    Named(String),
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Congestion::Auto => "auto",
            Congestion::System => "system",
            Congestion::Named(name) => name,
        })
    }
}

impl Serialize for Congestion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Congestion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        match name.as_str() {
            "auto" => Ok(Congestion::Auto),
            "system" => Ok(Congestion::System),
            _ if (1..=MAX_NAME).contains(&name.len()) && name.chars().all(ok) => {
                Ok(Congestion::Named(name))
            }
            _ => Err(de::Error::custom(format!(
                "`{name}` is no congestion control{HELP}use auto, system, or a name that `sysctl \
                 net.ipv4.tcp_available_congestion_control` lists, such as cubic"
            ))),
        }
    }
}

impl Congestion {
    /// Name to set on this system's sockets. `None` keeps the system's default: the configuration
    /// asks for that, the default is not BBR, or the system does not name it.
    ///
    /// # Errors
    /// The system does not allow the named algorithm.
    pub fn choose(&self) -> io::Result<Option<String>> {
        let probe = || Socket::new(Domain::IPV4, Type::STREAM, None);
        match self {
            Congestion::System => Ok(None),
            Congestion::Named(name) => probe()
                .and_then(|socket| socket.set_tcp_congestion(name.as_bytes()))
                .map(|()| Some(name.clone())),
            Congestion::Auto => {
                let Ok(socket) = probe() else {
                    return Ok(None);
                };
                let own = socket.tcp_congestion().unwrap_or_default();
                let grants = |name: &str| socket.set_tcp_congestion(name.as_bytes()).is_ok();
                Ok(instead_of(&own, grants).map(str::to_owned))
            }
        }
    }
}

/// Sets the algorithm of a listening or unconnected socket; `None` keeps the system's default.
///
/// # Errors
/// The system does not allow the algorithm.
pub fn set_congestion(socket: &Socket, name: Option<&str>) -> io::Result<()> {
    name.map_or(Ok(()), |name| socket.set_tcp_congestion(name.as_bytes()))
}

/// Replacement of the system's default `own`, from the algorithms that the system allows.
fn instead_of(own: &[u8], grants: impl Fn(&str) -> bool) -> Option<&'static str> {
    own.starts_with(b"bbr")
        .then(|| INSTEAD.into_iter().find(|name| grants(name)))
        .flatten()
}

/// Listens on `address`. Accepted connections use `congestion`, or the system's default for `None`.
///
/// # Errors
/// A system call fails: `congestion` is not allowed, or as [`cannot_listen`].
pub fn listen(address: SocketAddr, congestion: Option<&str>) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    set_congestion(&SockRef::from(&socket), congestion)?;
    let listening = socket.bind(address).and_then(|()| socket.listen(BACKLOG));
    listening.map_err(|e| cannot_listen(address, &e))
}

/// Says why `address` cannot be listened on, and the remedy, in an error of the same kind.
pub fn cannot_listen(address: SocketAddr, error: &io::Error) -> io::Error {
    let (ip, port) = (address.ip(), address.port());
    let text = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{address} is in use by another program: end it or choose another port")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("{ip} is no address of this machine: choose one that `ip address` lists")
        }
        io::ErrorKind::PermissionDenied if port < 1024 => {
            format!("port {port} is for privileged users: choose one from 1024 on")
        }
        _ => format!("cannot listen on {address}: {error}"),
    };
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_cannot_be_listened_on_is_told_from_one_in_use() {
        let error = |address: SocketAddr| {
            let e = listen(address, None).expect_err("refused");
            (e.kind(), e.to_string())
        };
        let taken = listen("127.0.0.1:0".parse().expect("an address"), None).expect("free");
        let (kind, text) = error(taken.local_addr().expect("bound"));
        assert_eq!(kind, io::ErrorKind::AddrInUse);
        assert!(text.contains("in use by another program"), "{text}");
        // 192.0.2.0/24 is for documentation.
        let (kind, text) = error("192.0.2.1:7400".parse().expect("an address"));
        assert_eq!(kind, io::ErrorKind::AddrNotAvailable);
        assert!(
            text.starts_with("192.0.2.1 is no address of this machine"),
            "{text}"
        );
        let denied = io::ErrorKind::PermissionDenied.into();
        let text = cannot_listen(([127, 0, 0, 1], 80).into(), &denied).to_string();
        assert!(text.contains("from 1024 on"), "{text}");
    }

    #[test]
    fn bbr_makes_way_for_the_first_that_is_granted_and_nothing_else_does() {
        let all = |_: &str| true;
        assert_eq!(instead_of(b"bbr\0\0\0", all), Some("cubic"));
        assert_eq!(instead_of(b"bbr2", |n| n == "reno"), Some("reno"));
        assert_eq!(instead_of(b"bbr", |_| false), None);
        for own in [&b"cubic\0"[..], b"dctcp", b"reno", b""] {
            assert_eq!(instead_of(own, all), None, "{own:?}");
        }
    }

    #[test]
    fn the_one_that_is_named_is_granted_or_refused() {
        assert_eq!(Congestion::System.choose().expect("no question"), None);
        let named = |name: &str| Congestion::Named(name.to_owned()).choose();
        // Every system has Reno and allows it to all users.
        assert_eq!(named("reno").expect("granted"), Some("reno".to_owned()));
        let none = named("no_such_one").expect_err("there is none");
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }
}
