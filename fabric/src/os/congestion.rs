//! Which congestion control the sockets of data connections have.
//!
//! BBR, which some systems have as their own, is made for the internet: it paces what it sends by
//! what it takes for the way's rate, and finds that out from what it was given to send. Within a
//! machine room no more is in flight than a connection's slots, mostly less than the way carries,
//! and a guess that came out of a quiet moment, or of more slots than were good, is one that a
//! connection hardly gets away from. Measured over loopback with samples of 4,608 bytes
//! (`bench/README.md`): 1.2 million a second with CUBIC or Reno; 0.9 with BBR, and 1.15 for as long
//! as it had not left its start.
//!
//! It has to be said of a socket before it is connected, and of one that listens for those that it
//! accepts: a socket that had BBR may go on pacing.

use std::{fmt, io, str::FromStr};

use socket2::{Domain, Socket, Type};

/// Longest name that the kernel takes, in bytes (`TCP_CA_NAME_MAX` counts the zero behind it).
const MAX_NAME: usize = 15;

/// What `auto` asks for in place of BBR: the first that the system lets us have. It lets everybody
/// have Reno.
const INSTEAD: [&str; 2] = ["cubic", "reno"];

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// The system's own, but for BBR.
    #[default]
    Auto,
    /// The system's own, whichever that is.
    System,
    /// This one, as `net.ipv4.tcp_available_congestion_control` calls it.
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

impl FromStr for Congestion {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        match name {
            "auto" => Ok(Congestion::Auto),
            "system" => Ok(Congestion::System),
            _ if (1..=MAX_NAME).contains(&name.len()) && name.chars().all(ok) => {
                Ok(Congestion::Named(name.to_owned()))
            }
            _ => Err(format!("`{name}` is no congestion control")),
        }
    }
}

impl Congestion {
    /// The one to give to sockets here; `None` where the system's own will do, or the system does
    /// not say which that is.
    ///
    /// # Errors
    /// The system does not let us have the one that was named.
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

/// Gives it to a socket that is not connected yet, or listens; with `None` the system's own stays.
///
/// # Errors
/// The system does not let us have it.
pub fn set_congestion(socket: &Socket, name: Option<&str>) -> io::Result<()> {
    name.map_or(Ok(()), |name| socket.set_tcp_congestion(name.as_bytes()))
}

/// What to have in place of the system's own, of those that it grants.
fn instead_of(own: &[u8], grants: impl Fn(&str) -> bool) -> Option<&'static str> {
    own.starts_with(b"bbr")
        .then(|| INSTEAD.into_iter().find(|name| grants(name)))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // Every system has it, and lets everybody have it.
        assert_eq!(named("reno").expect("granted"), Some("reno".to_owned()));
        let none = named("no_such_one").expect_err("there is none");
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }
}
