//! A frontend 10 ms away against a flood of silent handshakes from another process. Started by
//! hand, because it occupies two cores for half a minute: `cargo nextest run -p qdl --test
//! handshake_flood --run-ignored all --no-capture`.

#[path = "cluster/harness.rs"]
mod harness;

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use harness::*;
use qdl::testkit::peer::Peer;
use socket2::{Domain, Socket, Type};

/// The port that the child process floods.
const PORT: &str = "QDL_FLOOD_PORT";
const EACH_SECOND: u64 = 20_000;
const AWAY: Duration = Duration::from_millis(10);

/// Connects at its rate without sending, until its standard input is closed.
fn flood(port: SocketAddr) {
    let (tell, end) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        let _ = tell.send(());
    });
    let (began, mut made, mut failed) = (Instant::now(), 0u64, 0u64);
    let mut silent = VecDeque::new();
    while end.try_recv().is_err() {
        let due = began.elapsed().as_micros() as u64 * EACH_SECOND / 1_000_000;
        while made < due {
            made += 1;
            let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None);
            let Ok(socket) = socket else {
                failed += 1;
                continue;
            };
            let _ = socket.set_linger(Some(Duration::ZERO));
            match socket.connect(&port.into()) {
                Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => failed += 1,
                _ => silent.push_back(socket),
            }
            if silent.len() > 8_000 {
                silent.pop_front();
            }
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    let rate = made as f64 / began.elapsed().as_secs_f64();
    println!("flood: {made} silent handshakes, {rate:.0} a second, {failed} failed");
}

/// Forwards bytes with the delay `AWAY`.
fn late(mut from: TcpStream, mut to: TcpStream) {
    let (tell, heard) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            if tell
                .send((Instant::now() + AWAY, bytes[..n].to_vec()))
                .is_err()
            {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        for (at, bytes) in heard {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
}

/// Returns a port that forwards to `to` with a delay in both directions.
fn far_away(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        while let Ok((here, _)) = listener.accept() {
            let Ok(there) = TcpStream::connect(to) else {
                continue;
            };
            let copies = (here.try_clone(), there.try_clone());
            if let (Ok(here_too), Ok(there_too)) = copies {
                late(here, there_too);
                late(there, here_too);
            }
        }
    });
    port
}

struct Flood(Child);

impl Drop for Flood {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Runs one session from handshake to end; returns the duration of the handshake.
fn get_in(through: SocketAddr) -> Result<Duration, String> {
    let began = Instant::now();
    let peer = Peer::begin(&through, &model()).map_err(|e| e.to_string())?;
    let took = began.elapsed();
    let name = peer.get(peer.session.handle.name());
    peer.leave();
    name.map(|_| took).map_err(|e| e.to_string())
}

#[test]
#[ignore = "takes two cores for half a minute"]
fn a_frontend_10_ms_away_gets_in_20_of_20_times_through_20000_silent_handshakes_a_second() {
    if let Ok(port) = std::env::var(PORT) {
        return flood(port.parse().expect("a port"));
    }
    let node = Running::named("acc-a");
    let own = std::env::current_exe().expect("this program");
    let flood = Command::new(own)
        .args(["a_frontend_10_ms", "--ignored", "--nocapture"])
        .env(PORT, node.address.to_string())
        .stdin(Stdio::piped())
        .spawn();
    let flood = Flood(flood.expect("started"));
    std::thread::sleep(Duration::from_secs(2));
    let through = far_away(node.address);
    let mut inside = 0;
    for time in 1..=20 {
        let got = get_in(through);
        println!("{time}: {got:?}");
        inside += u32::from(got.is_ok());
        // The node serves the next frontend once this frontend's connections are down.
        std::thread::sleep(Duration::from_millis(200));
    }
    drop(flood);
    assert_eq!(inside, 20);
}
