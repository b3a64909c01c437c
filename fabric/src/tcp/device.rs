//! A local TCP address of data connections, and the proofs that open a connection.
//!
//! The key comes over the control session and never crosses a data connection. Neither end posts
//! before it has checked the other's proof.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};

use super::frame::PREAMBLE_BYTES;
use crate::{
    OpenError,
    opening::ConnectionSecret,
    os::{listen, set_congestion},
    wire::{DATA_MAGIC, is_control_frame},
};

const WELCOME: &[u8; 8] = b"QDLOK\0\0\0";

/// Time limit for a peer's preamble, for its proof, and for writing the welcome.
pub const PREAMBLE_DEADLINE: Duration = Duration::from_secs(2);

/// Time that a refused peer has to read the refusal.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Bytes of a proof.
const PROOF_BYTES: usize = 32;

/// First bytes of a data connection, in clear: the connection and a nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// Index of the connection within the session.
    pub connection: u16,
    /// Epoch of the connection.
    pub epoch: u32,
    /// Fresh random bytes of the frontend.
    pub nonce: [u8; 16],
}

impl Preamble {
    /// Makes a preamble with a fresh nonce.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn new(connection: u16, epoch: u32) -> io::Result<Self> {
        Ok(Preamble {
            connection,
            epoch,
            nonce: nonce()?,
        })
    }

    /// Encodes the preamble for the wire.
    pub fn encode(&self) -> [u8; PREAMBLE_BYTES] {
        let mut b = [0; PREAMBLE_BYTES];
        b[..8].copy_from_slice(DATA_MAGIC);
        b[8..10].copy_from_slice(&self.connection.to_le_bytes());
        b[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        b[16..].copy_from_slice(&self.nonce);
        b
    }

    /// Decodes a preamble; `None` for bytes that are no preamble.
    pub(crate) fn decode(b: &[u8; PREAMBLE_BYTES]) -> Option<Self> {
        if &b[..8] != DATA_MAGIC || b[10..12] != [0, 0] {
            return None;
        }
        Some(Preamble {
            connection: u16::from_le_bytes([b[8], b[9]]),
            epoch: u32::from_le_bytes([b[12], b[13], b[14], b[15]]),
            nonce: b[16..].try_into().ok()?,
        })
    }
}

fn nonce() -> io::Result<[u8; 16]> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

/// The end that proves.
#[derive(Clone, Copy)]
enum Prover {
    Frontend = 1,
    Accelerator = 2,
}

impl ConnectionSecret {
    fn mac(&self, prover: Prover, preamble: &Preamble, nonce: &[u8; 16]) -> Hmac<Sha256> {
        let ip = match self.address.ip().to_canonical() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Hmac::<Sha256>::new_from_slice(&self.key)
            .expect("HMAC takes a key of any length")
            .chain_update(b"qdl data 1\0")
            .chain_update([prover as u8])
            .chain_update(preamble.nonce)
            .chain_update(nonce)
            .chain_update(preamble.connection.to_le_bytes())
            .chain_update(preamble.epoch.to_le_bytes())
            .chain_update(ip.octets())
            .chain_update(self.address.port().to_le_bytes())
    }
}

/// The error of a data connection to `peer` that cannot be opened.
pub(super) fn unreachable(peer: SocketAddr, source: &io::Error) -> OpenError {
    OpenError::Refused(format!("cannot open a data connection to {peer}: {source}"))
}

/// A local TCP address: listens for data connections and opens them.
#[derive(Debug)]
pub struct TcpDevice;

impl TcpDevice {
    /// Listens for data connections. They use `congestion`, or the system's default for `None`.
    ///
    /// # Errors
    /// [`OpenError::Local`]: the node cannot listen on the address.
    pub fn listen(address: SocketAddr, congestion: Option<&str>) -> Result<TcpListener, OpenError> {
        let failed = |e| OpenError::Local(format!("data connections (`nics[].listen`): {e}"));
        listen(address, congestion).map_err(failed)
    }

    /// Reads a peer's preamble without welcoming the peer.
    ///
    /// # Errors
    /// The received bytes if they are no preamble; none if the peer sent too few bytes in time.
    pub async fn read_preamble(stream: &mut TcpStream) -> Result<Preamble, Vec<u8>> {
        let mut b = [0; PREAMBLE_BYTES];
        match timeout(PREAMBLE_DEADLINE, stream.read_exact(&mut b)).await {
            Ok(Ok(_)) => Preamble::decode(&b).ok_or_else(|| b.to_vec()),
            _ => Err(Vec::new()),
        }
    }

    /// Proves the secret to a peer with this preamble, and checks the peer's proof.
    ///
    /// # Errors
    /// The peer proved nothing in time, or its proof is wrong.
    pub async fn prove(
        stream: &mut TcpStream,
        preamble: &Preamble,
        secret: &ConnectionSecret,
    ) -> io::Result<()> {
        let exchange = async {
            let nonce = nonce()?;
            let proof = secret.mac(Prover::Accelerator, preamble, &nonce).finalize();
            let answer = [&nonce[..], &proof.into_bytes()].concat();
            stream.write_all(&answer).await?;
            let mut proof = [0; PROOF_BYTES];
            stream.read_exact(&mut proof).await?;
            let own = secret.mac(Prover::Frontend, preamble, &nonce);
            own.verify_slice(&proof)
                .map_err(|_| io::Error::from(io::ErrorKind::PermissionDenied))
        };
        timeout(PREAMBLE_DEADLINE, exchange)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Refuses a peer with the message `with`. The function drains the peer's bytes for up to 500
    /// ms, since the kernel answers unread bytes with a reset, and a reset would discard the
    /// message.
    pub async fn send_away(mut stream: TcpStream, with: &[u8]) {
        let _ = timeout(LAST_WORDS, async {
            stream.write_all(with).await?;
            stream.shutdown().await?;
            tokio::io::copy(&mut stream.take(64 << 10), &mut tokio::io::sink()).await
        })
        .await;
    }

    /// Tells the peer that its connection is in place.
    ///
    /// # Errors
    /// The peer is gone, or the write exceeds its deadline.
    pub async fn welcome(stream: &mut TcpStream) -> io::Result<()> {
        timeout(PREAMBLE_DEADLINE, stream.write_all(WELCOME))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Opens a data connection from `local` to `peer`, and proves the secret both ways. The
    /// accelerator gives up a connection to another address than the secret's. The socket uses
    /// `congestion`, or the system's default for `None`.
    ///
    /// # Errors
    /// The text names the address at fault.
    pub async fn connect(
        local: IpAddr,
        peer: SocketAddr,
        preamble: &Preamble,
        secret: &ConnectionSecret,
        congestion: Option<&str>,
        deadline: Duration,
    ) -> Result<std::net::TcpStream, OpenError> {
        if local.is_ipv4() != peer.is_ipv4() {
            return Err(OpenError::Local(format!(
                "cannot open a data connection from {local} to {peer}: one is IPv4, the other \
                 IPv6; name the accelerator (`accelerators[].control`) by an address of the family \
                 of `nics[].address`"
            )));
        }
        let failed = |source| unreachable(peer, &source);
        let timed_out = || failed(io::Error::from(io::ErrorKind::TimedOut));
        let socket = match peer {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }
        .map_err(failed)?;
        socket.bind(SocketAddr::new(local, 0)).map_err(|e| {
            OpenError::Local(format!(
                "cannot use {local} as the local address of data connections: {e} \
                     (`nics[].address`)"
            ))
        })?;
        set_congestion(&SockRef::from(&socket), congestion).map_err(failed)?;
        let exchange = async {
            let mut stream = socket.connect(peer).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            stream.write_all(&preamble.encode()).await.map_err(failed)?;
            let refused = |what: String| {
                let connection = preamble.connection;
                OpenError::Refused(format!(
                    "{peer} did not welcome data connection {connection}: {what}"
                ))
            };
            let closed = |e| refused(format!("it closed the connection ({e}); see its log"));
            let mut nonce = [0; 16];
            stream.read_exact(&mut nonce).await.map_err(closed)?;
            if is_control_frame(&nonce) {
                return Err(refused(
                    "it is a control port (`control.listen`), and not the data port that was granted \
                     (`nics[].listen`): look at what forwards to them"
                        .to_owned(),
                ));
            }
            let mut proof = [0; PROOF_BYTES];
            stream.read_exact(&mut proof).await.map_err(closed)?;
            let theirs = secret.mac(Prover::Accelerator, preamble, &nonce);
            theirs.verify_slice(&proof).map_err(|_| {
                refused(
                    "its proof is wrong: another program or another node answers at this address"
                        .to_owned(),
                )
            })?;
            let own = secret.mac(Prover::Frontend, preamble, &nonce).finalize();
            stream.write_all(&own.into_bytes()).await.map_err(failed)?;
            let mut answer = [0; 8];
            match stream.read_exact(&mut answer).await {
                Ok(_) if &answer == WELCOME => Ok(stream),
                Ok(_) => Err(refused(format!("it answered {answer:02x?}"))),
                Err(e) => Err(closed(e)),
            }
        };
        let stream = timeout(deadline, exchange)
            .await
            .map_err(|_| timed_out())??;
        stream.into_std().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[tokio::test]
    async fn both_ends_have_the_congestion_control_that_was_asked_for() {
        let any = "127.0.0.1:0".parse().expect("an address");
        let listener = TcpDevice::listen(any, Some("reno")).expect("a free port");
        let to = listener.local_addr().expect("bound");
        let far = async {
            let (mut far, _) = listener.accept().await.expect("it comes");
            let preamble = TcpDevice::read_preamble(&mut far).await.expect("ours");
            let proved = TcpDevice::prove(&mut far, &preamble, &secret(to)).await;
            proved.expect("it has the key");
            TcpDevice::welcome(&mut far).await.expect("it is there");
            far
        };
        let preamble = Preamble::new(0, 1).expect("random bytes");
        let patience = Duration::from_secs(10);
        let secret = secret(to);
        let near = TcpDevice::connect(to.ip(), to, &preamble, &secret, Some("reno"), patience);
        let (near, far) = tokio::join!(near, far);
        let near = near.expect("connected");
        for socket in [SockRef::from(&near), SockRef::from(&far)] {
            let has = socket.tcp_congestion().expect("asked");
            assert!(has.starts_with(b"reno\0"), "{has:?}");
        }
    }

    /// The opening of a connection whose accelerator says `last` in place of a welcome.
    async fn opened_with(last: [u8; 8]) -> Result<std::net::TcpStream, OpenError> {
        let any = "127.0.0.1:0".parse().expect("an address");
        let listener = TcpDevice::listen(any, None).expect("a free port");
        let secret = secret(listener.local_addr().expect("bound"));
        let far = async {
            let (mut far, _) = listener.accept().await.expect("it comes");
            let preamble = TcpDevice::read_preamble(&mut far).await.expect("ours");
            let proved = TcpDevice::prove(&mut far, &preamble, &secret).await;
            proved.expect("it has the key");
            far.write_all(&last).await.expect("it is there");
        };
        let preamble = Preamble::new(3, 1).expect("random bytes");
        let (to, patience) = (secret.address, Duration::from_secs(10));
        let near = TcpDevice::connect(to.ip(), to, &preamble, &secret, None, patience);
        tokio::join!(near, far).0
    }

    #[tokio::test]
    async fn nothing_but_a_welcome_opens_a_connection() {
        opened_with(*WELCOME).await.expect("open");
        let e = opened_with(*b"QDLNO\0\0\0").await.expect_err("no welcome");
        let text = e.to_string();
        assert!(text.contains("did not welcome data connection 3"), "{text}");
    }

    #[tokio::test]
    async fn a_peer_that_is_sent_away_reads_why_though_nobody_read_what_it_sent() {
        let any = "127.0.0.1:0".parse().expect("an address");
        let listener = TcpDevice::listen(any, None).expect("a free port");
        let to = listener.local_addr().expect("bound");
        let mut peer = TcpStream::connect(to).await.expect("connected");
        peer.write_all(&[0; 4096]).await.expect("room");
        let (far, _) = listener.accept().await.expect("it comes");
        TcpDevice::send_away(far, b"full").await;
        let reset = SockRef::from(&peer).take_error().expect("asked");
        assert!(reset.is_none(), "{reset:?}");
        let mut read = Vec::new();
        peer.read_to_end(&mut read).await.expect("connected");
        assert_eq!(read, b"full");
    }

    #[test]
    fn every_nonce_is_new_and_no_key_is_printed() {
        let nonces = [0; 2].map(|_| Preamble::new(0, 1).expect("random bytes").nonce);
        assert_ne!(nonces[0], nonces[1]);
        let secret = secret("10.0.0.1:7410".parse().expect("an address"));
        assert_eq!(format!("{secret:?}"), "ConnectionSecret(10.0.0.1:7410)");
    }

    /// Pins the proof's input; the expected value was computed with Python's hmac module.
    #[test]
    fn the_proof_is_what_the_protocol_says() {
        let preamble = Preamble {
            connection: 3,
            epoch: 9,
            nonce: [0x11; 16],
        };
        let secret = secret("10.0.0.1:7410".parse().expect("an address"));
        let proof = secret.mac(Prover::Accelerator, &preamble, &[0x22; 16]);
        assert_eq!(
            hex::encode(proof.finalize().into_bytes()),
            "b8258021f0ed4bdc400399c720b792d9d05d2db33427be33f5a43d045eed518d"
        );
    }

    fn secret(address: SocketAddr) -> ConnectionSecret {
        ConnectionSecret {
            key: [7; 32],
            address,
        }
    }

    proptest! {
        #[test]
        fn preambles_survive(connection: u16, epoch: u32, nonce: [u8; 16]) {
            let p = Preamble { connection, epoch, nonce };
            prop_assert_eq!(Preamble::decode(&p.encode()), Some(p));
        }

        #[test]
        fn strangers_are_recognised(mut b: [u8; PREAMBLE_BYTES]) {
            b[0] = b[0].wrapping_add(u8::from(b[0] == b'Q'));
            prop_assert_eq!(Preamble::decode(&b), None);
            b[10..12].fill(0);
            prop_assert_eq!(Preamble::decode(&b), None);
            b[..8].copy_from_slice(DATA_MAGIC);
            prop_assert!(Preamble::decode(&b).is_some());
            b[10] = 1;
            prop_assert_eq!(Preamble::decode(&b), None, "of a later release");
        }
    }
}
