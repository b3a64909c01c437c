//! Who may read the page: on a loopback address whoever is on this machine, else who has the
//! session's token.

use std::net::{IpAddr, SocketAddr};

use hyper::{HeaderMap, Uri, header};
use qdl::{
    config::{Auth, FrontendConfig},
    control::Token,
};

use super::LiveError;

/// Longest token in a request, in characters: each byte may take three.
const MOST: usize = 3 * qdl::control::auth::MAX_TOKEN;

/// What a request has to bring.
#[derive(Clone, Debug)]
pub enum Access {
    /// Nothing but an honest host name: a page elsewhere may not have a browser on this machine
    /// read this one for it, by a name that it lets stand for this machine.
    Loopback,
    /// The token.
    Token(Token),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It has no token, or another one.
    Token,
    /// It calls this machine by a name that is not its own.
    Host,
}

impl Access {
    /// For an address.
    ///
    /// # Errors
    /// Others reach the address and there is no token, or it cannot be read.
    pub fn of(address: SocketAddr, config: &FrontendConfig) -> Result<Self, LiveError> {
        if address.ip().to_canonical().is_loopback() {
            return Ok(Access::Loopback);
        }
        match config.auth() {
            Auth::Token(path) => Ok(Access::Token(Token::from_file(path)?)),
            Auth::None | Auth::LoopbackOnly => Err(LiveError::NoToken(address)),
        }
    }

    /// May whoever asks so read it?
    ///
    /// # Errors
    /// [`Refused`].
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
        match self {
            Access::Loopback if is_this_machine(headers) => Ok(()),
            Access::Loopback => Err(Refused::Host),
            Access::Token(token) => {
                let given = bearer(headers).or_else(|| query(uri));
                let good = given.is_some_and(|given| token.is(&given));
                if good { Ok(()) } else { Err(Refused::Token) }
            }
        }
    }
}

/// Is the host that is asked for `localhost` or a loopback address? What asks for none is no
/// browser.
fn is_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else {
        return true;
    };
    let Ok(host) = host.to_str() else {
        return false;
    };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(loopback)
}

/// `Authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let token = value.strip_prefix(b"Bearer ")?.trim_ascii();
    (token.len() <= MOST).then(|| token.to_vec())
}

/// `?token=TOKEN`.
fn query(uri: &Uri) -> Option<Vec<u8>> {
    let mut pairs = uri.query()?.split('&');
    let token = pairs.find_map(|pair| pair.strip_prefix("token="))?;
    (token.len() <= MOST).then(|| decoded(token.as_bytes()))
}

/// Bytes that a URL writes as `%7E`.
fn decoded(text: &[u8]) -> Vec<u8> {
    let digit = |c: u8| char::from(c).to_digit(16);
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&c, after)) = rest.split_first() {
        rest = after;
        let hex = match (c, after) {
            (b'%', [high, low, ..]) => digit(*high).zip(digit(*low)),
            _ => None,
        };
        match hex {
            Some((high, low)) => {
                out.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            None => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(header::HeaderName, &str)]) -> HeaderMap {
        let one = |(name, value): &(header::HeaderName, &str)| {
            (name.clone(), value.parse().expect("a value"))
        };
        pairs.iter().map(one).collect()
    }

    fn uri(text: &str) -> Uri {
        text.parse().expect("a URI")
    }

    #[test]
    fn a_token_comes_in_a_header_or_in_the_address() {
        let token = "abc+d/e=f g~h 16 bytes";
        let access = Access::Token(Token::new(token.as_bytes()).expect("long enough"));
        let none = headers(&[]);
        let good = "/?x=1&token=abc+d/e=f%20g%7eh%2016%20bytes";
        assert_eq!(access.check(&uri(good), &none), Ok(()));
        for wrong in ["/", "/?token=", "/?token=abc", "/?Token=abc", "/?token=%"] {
            assert_eq!(access.check(&uri(wrong), &none), Err(Refused::Token));
        }
        let bearer = format!("Bearer {token}");
        let given = headers(&[(header::AUTHORIZATION, &bearer)]);
        assert_eq!(access.check(&uri("/"), &given), Ok(()));
        let other = headers(&[(header::AUTHORIZATION, "Bearer another of 16 bytes")]);
        assert_eq!(access.check(&uri("/"), &other), Err(Refused::Token));
        let long = format!("/?token={}", "a".repeat(MOST + 1));
        assert_eq!(access.check(&uri(&long), &none), Err(Refused::Token));
    }

    #[test]
    fn on_loopback_names_of_others_are_refused() {
        let check = |host: &str| {
            let headers = headers(&[(header::HOST, host)]);
            Access::Loopback.check(&uri("/"), &headers)
        };
        for own in ["localhost:9417", "127.0.0.1", "[::1]:80", "127.0.0.9:1"] {
            assert_eq!(check(own), Ok(()), "{own}");
        }
        for other in ["example.org", "192.0.2.1:80", "127.0.0.1.example.org", ""] {
            assert_eq!(check(other), Err(Refused::Host), "{other}");
        }
        assert_eq!(Access::Loopback.check(&uri("/"), &headers(&[])), Ok(()));
    }
}
