//! Data connections of strangers, and of a frontend that came another way.
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    time::Duration,
};

use crate::harness::*;
use fabric::tcp::{HEADER_BYTES, PREAMBLE_BYTES, Preamble};
use qdl::{
    config::NicConfig,
    control::{Auth, ClientEvent, ConnectionGrant},
    model::ModelSpec,
    testkit::{
        assert_has,
        peer::{Key, Peer, connect_to, granted_address},
    },
};

const PATIENCE: Duration = Duration::from_secs(30);

fn small() -> ModelSpec {
    ModelSpec::opaque("digest", 64, 8)
}

fn node(listen: &str) -> Running {
    Running::start(NodeSetup {
        memory: 1 << 20,
        model: small(),
        nics: vec![NicConfig::tcp(listen.parse().expect("an address"))],
        ..NodeSetup::default()
    })
}

fn granted(peer: &Peer, key: Key) -> (ConnectionGrant, SocketAddr) {
    let grant = peer.open(&small(), 1, key).remove(0);
    let port = granted_address(&grant);
    (grant, port)
}

/// Forwards one connection to `to`, and returns its address and the frontend's bytes.
fn forwarder(to: SocketAddr) -> (SocketAddr, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("bound");
    let (tell, sent) = mpsc::channel();
    std::thread::spawn(move || {
        let (here, _) = listener.accept().expect("it comes");
        let there = TcpStream::connect(to).expect("it listens");
        let (mut from, mut back) = (here.try_clone().expect("room"), here);
        let (mut onward, mut answers) = (there.try_clone().expect("room"), there);
        std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            let _ = tell.send(bytes[..n].to_vec());
            if onward.write_all(&bytes[..n]).is_err() {
                return;
            }
        }
    });
    (address, sent)
}

/// A stranger's bytes for the granted connection; true once the port has closed it.
fn is_shown_out(port: SocketAddr, bytes: &[u8]) -> bool {
    let mut stranger = TcpStream::connect(port).expect("connected");
    stranger.set_read_timeout(Some(PATIENCE)).expect("set");
    let _ = stranger.write_all(bytes);
    let mut said = Vec::new();
    let end = stranger.read_to_end(&mut said);
    let closed = end.is_ok() || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset);
    closed && !said.ends_with(b"QDLOK\0\0\0")
}

#[test]
fn a_connection_that_was_not_proved_carries_nothing() {
    let node = node("127.0.0.1:0");
    let mut peer = Peer::begin(&node.address, &small(), Auth::Unset).expect("taken");
    let key = Key::random().expect("random bytes");
    let (grant, port) = granted(&peer, key);
    let preamble = Preamble::new(0, 1).expect("random bytes").encode();
    let sample = [&[1, 0, 0, 0][..], &[0; HEADER_BYTES - 4], &[7; 64]].concat();
    let proof = [0x55; 32];
    // A sample in place of the proof, behind a wrong proof, and without any preamble.
    let wrong = [&preamble[..], &proof, &sample].concat();
    for bytes in [&[&preamble[..], &sample].concat(), &wrong, &sample] {
        assert!(is_shown_out(port, bytes), "{bytes:?}");
    }
    for (connection, epoch) in [(0, 2), (1, 1)] {
        let other = Preamble::new(connection, epoch).expect("random bytes");
        assert!(is_shown_out(port, &other.encode()), "not granted");
    }
    // The accelerator's own proof, reflected.
    let mut mirror = TcpStream::connect(port).expect("connected");
    mirror.set_read_timeout(Some(PATIENCE)).expect("set");
    mirror.write_all(&preamble).expect("sent");
    let mut answer = [0; 48];
    mirror.read_exact(&mut answer).expect("a nonce and a proof");
    mirror.write_all(&answer[16..]).expect("sent");
    assert!(matches!(mirror.read(&mut answer), Ok(0) | Err(_)), "let in");
    // An attacker on the path repeats the frontend's bytes in another connection.
    let (through, sent) = forwarder(port);
    peer.data = vec![connect_to(through, &grant, &key).expect("let in")];
    let first = sent.recv_timeout(PATIENCE).expect("its preamble");
    let second = sent.recv_timeout(PATIENCE).expect("its proof");
    assert_eq!((first.len(), second.len()), (PREAMBLE_BYTES, 32));
    assert!(is_shown_out(port, &[&first[..], &second, &sample].concat()));
    let holds = |bytes: &Vec<u8>| bytes.windows(8).any(|w| w == &key.0[..8]);
    let crossed = [first, second].iter().any(holds);
    assert!(!crossed, "the key crossed the wire");
    peer.start();
    peer.send(0, 3, &[7; 64]);
    assert_eq!(peer.response(0).0, 3);
    let (counters, ..) = peer.get(peer.session.handle.drain()).expect("drained");
    assert_eq!((counters.arrived, counters.responded), (1, 1));
    peer.leave();
}

#[test]
fn a_proved_connection_to_another_address_is_given_up_and_both_ends_say_why() {
    let node = node("0.0.0.0:0");
    let mut peer = Peer::begin(&node.address, &small(), Auth::Unset).expect("taken");
    let key = Key::random().expect("random bytes");
    let (grant, port) = granted(&peer, key);
    assert_eq!(port.ip(), Ipv4Addr::LOCALHOST, "as the control connection");
    // As NAT would have it.
    let elsewhere = SocketAddr::from(([127, 0, 0, 2], port.port()));
    let e = connect_to(elsewhere, &grant, &key).expect_err("refused");
    assert_has(&e.to_string(), &["closed the connection"]);
    let cause = peer.hear(|e| match e {
        ClientEvent::ConnectionLost { cause, .. } => Some(cause.clone()),
        _ => None,
    });
    assert_has(&cause, &[&elsewhere.to_string(), &port.to_string(), "NAT"]);
    peer.leave();
}

#[test]
fn an_accelerator_without_the_key_gets_nothing_of_the_frontend() {
    let node = node("127.0.0.1:0");
    let peer = Peer::begin(&node.address, &small(), Auth::Unset).expect("taken");
    let (grant, port) = granted(&peer, Key::random().expect("random bytes"));
    let other = Key::random().expect("random bytes");
    let (through, sent) = forwarder(port);
    let e = connect_to(through, &grant, &other).expect_err("refused");
    assert_has(&e.to_string(), &["its proof is wrong"]);
    let first = sent.recv_timeout(PATIENCE).expect("its preamble");
    assert_eq!(first.len(), PREAMBLE_BYTES);
    assert!(sent.recv_timeout(PATIENCE).is_err(), "closed without more");
    peer.leave();
}
