//! The shared token of the nodes, and a node's policy of authentication.
//!
//! The token is 32 random bytes. It never crosses the wire: [`noise`](super::noise) derives the
//! session's pre-shared key from it.

use std::{
    fmt, fs,
    io::{self, Read, Write},
    net::IpAddr,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

use hmac::{Hmac, KeyInit, Mac, digest::CtOutput};
use sha2::Sha256;

use super::message::{AuthKind, Hex};

/// Most bytes of a token file that are read.
const MAX_FILE: u64 = 4096;

/// Error of this node's token or authentication policy. The text names the file or the address, and
/// the remedy.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct AuthError(String);

/// Whether a file of this mode is open to other users.
fn others_may_read(mode: u32) -> bool {
    mode & 0o077 != 0
}

/// A secret of 32 random bytes; its `Debug` output does not show it.
#[derive(Clone)]
pub struct Token(Hex<32>);

impl Token {
    /// Reads a token from the file of the configuration's `key`, trimmed of white space. Warns if
    /// others may read the file.
    ///
    /// # Errors
    /// [`AuthError`] names the file.
    pub fn from_file(key: &'static str, path: &Path) -> Result<Self, AuthError> {
        let shown = path.display();
        let unreadable = |e: io::Error| AuthError(format!("{key}: {shown}: {e}"));
        let file = fs::File::open(path).map_err(unreadable)?;
        let mode = file.metadata().map_err(unreadable)?.permissions().mode();
        if others_may_read(mode) {
            tracing::warn!("{key}: {shown} can be read by others: chmod 600");
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        let text = bytes.trim_ascii();
        Token::parse(text).ok_or_else(|| {
            AuthError(format!(
                "{key}: {shown}: a token is 64 hexadecimal digits (32 random bytes), and this file \
                 holds {} bytes of another form; `qdl token -o FILE` makes a token",
                text.len()
            ))
        })
    }

    /// Makes a token.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn random() -> io::Result<Self> {
        Hex::random().map(Token)
    }

    /// Reads a token from its 64 hexadecimal digits.
    pub fn parse(digits: &[u8]) -> Option<Self> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).ok()?;
        Some(Token(Hex(bytes)))
    }

    /// The token's 64 hexadecimal digits.
    pub fn to_digits(&self) -> String {
        hex::encode(self.0.0)
    }

    /// Writes the token to a new file that only its owner can read.
    ///
    /// # Errors
    /// The file exists already, or cannot be written.
    pub fn write_new(&self, path: &Path) -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        writeln!(file, "{}", self.to_digits())
    }

    fn mac(&self, purpose: &str) -> CtOutput<Hmac<Sha256>> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0.0).expect("HMAC takes any key");
        mac.chain_update(purpose).finalize()
    }

    /// Derives the key for `purpose`. Different purposes have independent keys.
    pub(super) fn derive(&self, purpose: &str) -> [u8; 32] {
        self.mac(purpose).into_bytes().into()
    }

    /// Whether these digits are the token's, in constant time.
    pub fn is(&self, digits: &[u8]) -> bool {
        let other = Token::parse(digits);
        other.is_some_and(|other| self.mac("the same") == other.mac("the same"))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Authentication policy of this node.
#[derive(Clone, Debug)]
pub enum Auth {
    /// Both sides must hold this token.
    Token(Token),
    /// Any peer may join, because the configuration says `auth: none`; the session is encrypted.
    None,
    /// The configuration says nothing: as [`Auth::None`], on loopback only.
    Unset,
}

impl Auth {
    /// The policy as the hello states it.
    pub(crate) fn kind(&self) -> AuthKind {
        match self {
            Auth::Token(_) => AuthKind::Token,
            Auth::None | Auth::Unset => AuthKind::None,
        }
    }

    /// Checks that the policy allows a session over this address: the listening address of an
    /// accelerator (so "any address" needs a token), or the address that a frontend connects to.
    ///
    /// # Errors
    /// [`AuthError`]: neither a token nor `auth: none` is configured.
    pub(crate) fn check(&self, address: IpAddr) -> Result<(), AuthError> {
        match self {
            Auth::Unset if !address.to_canonical().is_loopback() => Err(AuthError(format!(
                "control: {address} is not a loopback address and there is no token: set \
                     token_file, or say `auth: none` to let anyone in"
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGITS: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn token() -> Token {
        Token::parse(DIGITS.as_bytes()).expect("64 digits")
    }

    #[test]
    fn a_token_is_its_own_digits_and_no_others() {
        let token = token();
        assert!(token.is(DIGITS.as_bytes()));
        for other in ["", &DIGITS[2..], &DIGITS.replace("1f", "1e"), "\0"] {
            assert!(!token.is(other.as_bytes()), "{other:?}");
        }
        assert_eq!(format!("{token:?}"), "Token", "a log may hold it");
    }

    /// Pins the derivation; the expected value was computed with Python's hmac module.
    #[test]
    fn the_pre_shared_key_is_what_the_protocol_says() {
        assert_eq!(
            hex::encode(token().derive("qdl control psk")),
            "f5b1a0422d1fc1e2c25ba7c09bac1be2c66fc1990f5fb83ce0570589602d5593"
        );
        assert_ne!(token().derive("a"), token().derive("b"));
    }

    #[test]
    fn without_a_token_only_loopback_is_open_unless_the_config_says_none() {
        let ip = |s: &str| s.parse::<IpAddr>().expect("an address");
        for loopback in ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"] {
            Auth::Unset.check(ip(loopback)).expect("loopback");
        }
        for outside in ["10.0.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1"] {
            let e = Auth::Unset
                .check(ip(outside))
                .expect_err("an error")
                .to_string();
            assert!(e.contains("token_file") && e.contains(outside), "{e}");
            Auth::None.check(ip(outside)).expect("the config says so");
            Auth::Token(token()).check(ip(outside)).expect("a token");
        }
    }

    #[test]
    fn a_token_file_holds_64_digits_and_nothing_typed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        token().write_new(&path).expect("written");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!others_may_read(mode) && others_may_read(0o640) && others_may_read(0o601));
        let read = Token::from_file("token_file", &path).expect("a token");
        assert!(read.is(DIGITS.as_bytes()));
        token().write_new(&path).expect_err("there already");
        let odd = format!("{DIGITS}00");
        for bad in ["", "\n", "correct horse battery staple", &DIGITS[2..], &odd] {
            fs::write(&path, bad).expect("written");
            let e = Token::from_file("token_file", &path)
                .expect_err("an error")
                .to_string();
            assert!(e.contains("qdl token") && e.contains("64 hex"), "{e}");
            assert!(bad.trim().is_empty() || !e.contains(bad), "{e}");
        }
        fs::remove_file(&path).expect("removed");
        Token::from_file("token_file", &path).expect_err("no file");
    }
}
