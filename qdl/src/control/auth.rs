//! Mutual authentication of nodes by a shared token.
//!
//! Each side sends 32 fresh random bytes in its hello. Then first the frontend and next the
//! accelerator proves that it holds the token:
//!
//! ```text
//! mac = HMAC-SHA256(token, "qdl control 1" 00 | role 01 or 02 | frontend's nonce
//!                          | accelerator's nonce | sender's node name)
//! ```
//!
//! The role prevents reflection of a proof to its sender; the nonces prevent replay. The token
//! never crosses the wire. Later frames are neither encrypted nor signed: the proof keeps strangers
//! out, and does not stop an attacker who can alter packets.

use std::{
    fmt, fs,
    io::{self, Read},
    net::IpAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::message::{AuthKind, Hex, Role};

/// Shortest token, in bytes; a shorter one could be guessed from a proof.
pub(crate) const MIN_TOKEN: usize = 16;
/// Longest token, in bytes.
pub(crate) const MAX_TOKEN: usize = 4096;

const ANY_LENGTH: &str = "HMAC takes a key of any length";

/// Error of this node's token or authentication policy.
#[allow(missing_docs, reason = "the texts say what each field is")]
#[derive(Clone, Debug, thiserror::Error)]
pub enum AuthError {
    /// The token file cannot be read.
    #[error("token_file: {}: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        source: Arc<io::Error>,
    },
    /// The token is too short or too long.
    #[error(
        "token_file: {}: a token of {MIN_TOKEN} to {MAX_TOKEN} bytes is needed, this has {}; \
         `openssl rand -hex 32` makes one",
        path.display(),
        if *bytes > MAX_TOKEN { "more".to_owned() } else { bytes.to_string() }
    )]
    BadLength {
        path: PathBuf,
        /// Bytes of the token, without surrounding white space.
        bytes: usize,
    },
    /// The address is not loopback, and neither a token nor `auth: none` is configured.
    #[error(
        "control: {address} is not a loopback address and there is no token: set token_file, or \
         say `auth: none` to let anyone in"
    )]
    Unprotected { address: IpAddr },
}

/// The shared secret; its `Debug` output does not show it.
#[derive(Clone)]
pub struct Token(Arc<[u8]>);

impl Token {
    /// Reads a token from a file, trimmed of white space. Warns if others may read the file.
    ///
    /// # Errors
    /// [`AuthError`] names the file.
    pub(crate) fn from_file(path: &Path) -> Result<Self, AuthError> {
        let unreadable = |e: io::Error| AuthError::Unreadable {
            path: path.to_owned(),
            source: Arc::new(e),
        };
        let file = fs::File::open(path).map_err(unreadable)?;
        let mode = file.metadata().map_err(unreadable)?.permissions().mode();
        if mode & 0o077 != 0 {
            tracing::warn!(
                "token_file: {} can be read by others: chmod 600",
                path.display()
            );
        }
        let mut bytes = Vec::new();
        // Twice the limit, so that surrounding white space fits, and a longer file is detected.
        file.take(2 * MAX_TOKEN as u64)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        let token = bytes.trim_ascii();
        Token::new(token).ok_or_else(|| AuthError::BadLength {
            path: path.to_owned(),
            bytes: token.len(),
        })
    }

    /// Makes a token; `None` for fewer than [`MIN_TOKEN`] or more than [`MAX_TOKEN`] bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (MIN_TOKEN..=MAX_TOKEN)
            .contains(&bytes.len())
            .then(|| Token(bytes.into()))
    }

    /// Whether the token has these bytes, in constant time.
    pub fn is(&self, bytes: &[u8]) -> bool {
        let mac = |key: &[u8]| {
            let mac = Hmac::<Sha256>::new_from_slice(key).expect(ANY_LENGTH);
            let mac = mac.chain_update(b"the same\0");
            mac.chain_update((key.len() as u64).to_le_bytes())
                .finalize()
        };
        mac(&self.0) == mac(bytes)
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
    /// Both sides must prove this token.
    Token(Token),
    /// Any peer may join, because the configuration says `auth: none`.
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
    /// [`AuthError::Unprotected`].
    pub(crate) fn check(&self, address: IpAddr) -> Result<(), AuthError> {
        match self {
            Auth::Unset if !address.to_canonical().is_loopback() => {
                Err(AuthError::Unprotected { address })
            }
            _ => Ok(()),
        }
    }

    /// This node's proof; `None` where no token is configured.
    pub(super) fn prove(&self, challenge: &Challenge<'_>) -> Option<Hex<32>> {
        match self {
            Auth::Token(token) => Some(Hex(challenge.mac(token).finalize().into_bytes().into())),
            Auth::None | Auth::Unset => None,
        }
    }

    /// Whether `proof` is the peer's valid proof, checked in constant time.
    pub(super) fn verify(&self, challenge: &Challenge<'_>, proof: Option<&Hex<32>>) -> bool {
        match (self, proof) {
            (Auth::Token(token), Some(proof)) => {
                challenge.mac(token).verify_slice(&proof.0).is_ok()
            }
            (Auth::Token(_), None) => false,
            (Auth::None | Auth::Unset, proof) => proof.is_none(),
        }
    }
}

/// Input of a proof.
#[derive(Clone, Copy, Debug)]
pub(super) struct Challenge<'a> {
    /// Role of the proving node.
    pub prover: Role,
    /// Name of the proving node.
    pub node: &'a str,
    /// Nonce of the frontend's hello.
    pub frontend: &'a Hex<32>,
    /// Nonce of the accelerator's hello.
    pub accelerator: &'a Hex<32>,
}

impl Challenge<'_> {
    fn mac(&self, token: &Token) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&token.0).expect(ANY_LENGTH);
        mac.update(b"qdl control 1\0");
        mac.update(&[match self.prover {
            Role::Frontend => 1,
            Role::Accelerator => 2,
        }]);
        mac.update(&self.frontend.0);
        mac.update(&self.accelerator.0);
        mac.update(self.node.as_bytes());
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auth(token: &str) -> Auth {
        Auth::Token(Token::new(token.as_bytes()).expect("long enough"))
    }

    #[test]
    fn a_token_is_its_own_bytes_and_no_others() {
        let bytes = b"a token of 16 bytes or more";
        let token = Token::new(bytes).expect("long enough");
        assert!(token.is(bytes));
        for other in [&b""[..], &bytes[1..], b"a token of 16 bytes or mora"] {
            assert!(!token.is(other), "{other:?}");
        }
        assert!(!token.is(&[&bytes[..], b"\0"].concat()));
    }

    #[test]
    fn a_proof_holds_for_one_token_role_node_and_pair_of_nonces() {
        let (a, b, c) = (Hex([1; 32]), Hex([2; 32]), Hex([3; 32]));
        let good = Challenge {
            prover: Role::Frontend,
            node: "fe",
            frontend: &a,
            accelerator: &b,
        };
        let ours = auth("a token of 16 bytes or more");
        let proof = ours.prove(&good).expect("there is a token");
        assert!(ours.verify(&good, Some(&proof)));
        let others = [
            Challenge {
                prover: Role::Accelerator,
                ..good
            },
            Challenge {
                node: "fe2",
                ..good
            },
            Challenge {
                frontend: &c,
                ..good
            },
            Challenge {
                accelerator: &c,
                ..good
            },
            Challenge {
                frontend: &b,
                accelerator: &a,
                ..good
            },
        ];
        for other in others {
            assert!(!ours.verify(&other, Some(&proof)), "{other:?}");
        }
        assert!(!auth("another token of 16 bytes").verify(&good, Some(&proof)));
        assert!(!ours.verify(&good, None));
        assert!(Auth::None.verify(&good, None));
        assert!(!Auth::None.verify(&good, Some(&proof)));
    }

    /// Pins the proof's input; the expected value was computed with Python's hmac module.
    #[test]
    fn the_proof_is_what_the_protocol_says() {
        let challenge = Challenge {
            prover: Role::Accelerator,
            node: "dgx-01",
            frontend: &Hex([0x11; 32]),
            accelerator: &Hex([0x22; 32]),
        };
        let proof = auth("0123456789abcdef").prove(&challenge).expect("a token");
        assert_eq!(
            hex::encode(proof.0),
            "8ed74a90baeb327ca7df767e3a47239def89b87d59167f8110dab1f2940127b4"
        );
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
            auth("0123456789abcdef")
                .check(ip(outside))
                .expect("a token");
        }
    }

    #[test]
    fn a_token_is_trimmed_and_has_its_length_checked() {
        let path = std::env::temp_dir().join(format!("qdl-token-{}", std::process::id()));
        let read = |content: &[u8]| {
            fs::write(&path, content).expect("written");
            Token::from_file(&path)
        };
        let token = read(b"  0123456789abcdef \n").expect("a token");
        assert_eq!(&*token.0, b"0123456789abcdef");
        for bad in [&b""[..], b"\n", b"short\n", &[b'x'; MAX_TOKEN + 1]] {
            let e = read(bad).expect_err("an error");
            assert!(matches!(e, AuthError::BadLength { .. }), "{e}");
            assert!(e.to_string().contains("qdl-token-"), "{e}");
        }
        fs::remove_file(&path).expect("removed");
        let e = Token::from_file(&path).expect_err("an error");
        assert!(matches!(e, AuthError::Unreadable { .. }), "{e}");
    }
}
