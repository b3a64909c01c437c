//! Access to a server: unrestricted from this machine on a loopback address; otherwise with the
//! page's key, or with a token of a file.
//!
//! The key is random, and opens the page of one run only. During the run the key lies in a file of
//! the run's folder that only the owner can read; the program neither prints nor logs the key.
//! The first request brings the key in its URL and gets a cookie for later requests, so the key
//! stays in no URL.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    net::{IpAddr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
};

use disk::Temporary;
use fabric::os::Host;
use hyper::{HeaderMap, Uri, header};
use qdl::control::Token;

/// Name of the file with the page's URL and key, in a run's folder.
pub const FILE: &str = "live.url";

/// What a request must have to be served.
#[derive(Clone, Debug)]
pub enum Access {
    /// A host name of this machine. This prevents DNS rebinding: a foreign page in a local browser
    /// cannot read this page under its own host name.
    Loopback,
    /// The page's key.
    Key(Arc<PageKey>),
    /// The token, in a header.
    Token(Token),
}

/// A key and its file, which goes with this value or with the process.
pub struct PageKey {
    token: Token,
    cookie: String,
    /// The file with the page's URL.
    pub file: Temporary,
}

impl std::fmt::Debug for PageKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageKey({})", self.cookie)
    }
}

/// Reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessRefused {
    /// The request has no key of the page, or a wrong one.
    Key,
    /// The request has no token, or a wrong one.
    Token,
    /// The request names a host other than this machine.
    Host,
}

impl PageKey {
    fn make(address: SocketAddr, folder: &Path) -> io::Result<Self> {
        let token = Token::random()?;
        let file = Temporary::new(folder.join(FILE));
        fs::create_dir_all(folder)?;
        // Remove the file of a killed run.
        let _ = fs::remove_file(&*file);
        let mut out = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&*file)?;
        let host = match address.ip() {
            ip if ip.is_unspecified() => Host::this().name,
            IpAddr::V6(ip) => format!("[{ip}]"),
            ip => ip.to_string(),
        };
        let port = address.port();
        writeln!(out, "http://{host}:{port}/?key={}", token.to_digits())?;
        Ok(PageKey {
            token,
            // Cookies do not distinguish ports.
            cookie: format!("live_{port}"),
            file,
        })
    }
}

impl Access {
    /// Returns the access rules of a page at `address`, for a run with results in `folder`.
    /// Error: the key cannot be written.
    pub fn of(address: SocketAddr, folder: &Path) -> io::Result<Self> {
        match address.ip().to_canonical().is_loopback() {
            true => Ok(Access::Loopback),
            false => PageKey::make(address, folder).map(|key| Access::Key(Arc::new(key))),
        }
    }

    /// Checks a request. Returns the cookie of a redirect, in exchange for the key in the URL.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<Option<String>, AccessRefused> {
        let key = match self {
            Access::Token(token) => {
                let given = bearer(headers).is_some_and(|given| token.is(given.as_bytes()));
                return given.then_some(None).ok_or(AccessRefused::Token);
            }
            Access::Loopback if is_this_machine(headers) => return Ok(None),
            Access::Loopback => return Err(AccessRefused::Host),
            Access::Key(key) => key,
        };
        let is = |given: &str| key.token.is(given.as_bytes());
        let given = [cookie(headers, &key.cookie), bearer(headers)];
        if given.into_iter().flatten().any(is) {
            return Ok(None);
        }
        let pairs = uri.query().unwrap_or_default().split('&');
        match pairs.filter_map(|pair| pair.strip_prefix("key=")).any(is) {
            true => Ok(Some(format!(
                "{}={}; Path=/; HttpOnly; SameSite=Strict",
                key.cookie,
                key.token.to_digits()
            ))),
            false => Err(AccessRefused::Key),
        }
    }
}

/// Whether the `Host` header is `localhost` or a loopback address. A missing header is allowed,
/// because every browser sends the header.
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

/// The key in `Authorization: Bearer KEY`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    value.strip_prefix("Bearer ").map(str::trim)
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).iter();
    let pairs = lines
        .filter_map(|l| l.to_str().ok())
        .flat_map(|l| l.split(';'));
    let mut pairs = pairs.filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(own, _)| *own == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_its_own_key_that_no_log_shows_and_that_ends_with_the_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let address = "192.0.2.1:9417".parse().expect("an address");
        let file = folder.path().join(FILE);
        let of_a_run = || {
            let access = Access::of(address, folder.path()).expect("a key");
            let url = fs::read_to_string(&file).expect("its address");
            let key = url.trim().strip_prefix("http://192.0.2.1:9417/?key=");
            let key = key.expect("the address and the key").to_owned();
            (
                access,
                format!("/?key={key}").parse::<Uri>().expect("a URI"),
                key,
            )
        };
        let ((first, uri, key), (second, ..)) = (of_a_run(), of_a_run());
        let none = HeaderMap::new();
        assert!(
            first
                .check(&uri, &none)
                .is_ok_and(|cookie| cookie.is_some())
        );
        assert_eq!(second.check(&uri, &none), Err(AccessRefused::Key));
        assert!(!format!("{first:?}").contains(&key), "a log may contain it");
        drop((first, second));
        assert!(!file.exists(), "the run is over");
    }

    #[test]
    fn on_loopback_names_of_others_are_refused() {
        let check = |host: &str| {
            let host = (header::HOST, host.parse().expect("a value"));
            Access::Loopback.check(&Uri::from_static("/"), &HeaderMap::from_iter([host]))
        };
        for own in ["localhost:9417", "127.0.0.1", "[::1]:80", "127.0.0.9:1"] {
            assert_eq!(check(own), Ok(None), "{own}");
        }
        for other in ["example.org", "192.0.2.1:80", "127.0.0.1.example.org", ""] {
            assert_eq!(check(other), Err(AccessRefused::Host), "{other}");
        }
        let bare = Access::Loopback.check(&Uri::from_static("/"), &HeaderMap::new());
        assert_eq!(bare, Ok(None));
    }
}
