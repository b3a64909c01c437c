//! Fabrics and memory for tests without hardware. The feature `testkit` enables them, so that no
//! program contains them.
//!
//! | module | contents |
//! | --- | --- |
//! | [`counting`] | an allocator that counts allocations |
//! | [`dice`] | a seeded generator |
//! | [`memory`] | a fabric inside the process, which can be cut |
//! | [`sim`] | a fabric in one thread, with a clock, delays and faults |
//! | [`device_memory`] | a GPU's memory without a GPU |
//!
//! The crate `verbs` has RDMA devices without a NIC: its feature `stub`.

pub mod counting;
pub mod device_memory;
pub mod dice;
pub mod memory;
pub mod sim;
pub mod sim_nic;

use std::{
    net::{TcpListener, TcpStream, UdpSocket},
    process,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use crate::{
    Broken, Endpoint, Event, Grants, Imm, Link, Post, Region, SourceId, Window, wire::Stream,
};

/// Deadline that no test reaches, even in an emulated machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// An endpoint with closed grants and one source region of the window's size. Its peer's window is
/// assumed to have the same shape.
pub fn endpoint(slots: usize, stride: usize, send_depth: usize) -> Endpoint {
    let region = || Region::new(slots * stride).expect("memory").into();
    let grants = Grants::new(slots).into();
    Endpoint {
        window: Window::new(region(), 0, stride, grants).expect("fits"),
        sources: vec![region()],
        peer_slots: slots,
        peer_stride: stride,
        peer_stream: Stream::None,
        send_depth,
    }
}

/// A write of `len` bytes at `offset` of the first source to the slot's first bytes.
pub fn post(offset: usize, len: u32, imm: Imm) -> Post {
    Post {
        source: SourceId(0),
        offset,
        len,
        at: 0,
        imm,
    }
}

/// Both ends of a connection over loopback.
pub fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    (near, listener.accept().expect("accepted").0)
}

/// A free port of loopback. A UDP socket of the same number, which this process keeps, reserves it
/// among the tests of this machine; the system itself chooses ports above 32767 only.
pub fn free_port() -> u16 {
    static RESERVED: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    let mut reserved = RESERVED.lock().expect("no panic within");
    let start = process::id() as u16 % 12_000 + reserved.len() as u16;
    let mut ports = (0..12_000).map(|n| 20_000 + (start + n) % 12_000);
    let (port, socket) = ports
        .find_map(|port| {
            let socket = UdpSocket::bind(("127.0.0.1", port)).ok()?;
            TcpListener::bind(("127.0.0.1", port)).ok()?;
            Some((port, socket))
        })
        .expect("a port");
    reserved.push(socket);
    port
}

/// Waits until `holds`; panics with `what` after five minutes.
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    eventually_or(|| what.to_owned(), holds);
}

/// Like [`eventually`], with a text that is created only on failure.
#[track_caller]
pub fn eventually_or(what: impl Fn() -> String, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(300), "in vain: {}", what());
        if waited < Duration::from_millis(2) {
            thread::yield_now();
        } else {
            thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Panics with `text` if it lacks one of `words`.
#[track_caller]
pub fn assert_has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no `{word}` in {text}");
    }
}

/// Waits for the next event of `link`.
pub fn next(link: &mut Link) -> Event {
    let mut got = None;
    eventually("nothing came", || {
        link.rx.poll(1, &mut |e| got = Some(e));
        got.is_some()
    });
    got.expect("just seen")
}

/// Waits until `link` is broken.
pub fn next_broken(link: &mut Link) -> Broken {
    loop {
        if let Event::Broken(b) = next(link) {
            return b;
        }
    }
}
