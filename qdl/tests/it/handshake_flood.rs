//! A frontend 10 ms away, with a token, against a flood of half-open handshakes from another
//! process. Started by hand, because each test occupies two cores for half a minute: `cargo nextest
//! run -p qdl --run-ignored only --no-capture --test-threads 1 handshake_flood`.

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use crate::harness::*;
use qdl::{
    control::{Auth, Token},
    testkit::peer::Peer,
};
use socket2::{Domain, Socket, Type};

/// The port that the child process floods.
const PORT: &str = "QDL_FLOOD_PORT";
/// What the child process sends on each connection, in hexadecimal digits.
const SAYS: &str = "QDL_FLOOD_SAYS";
const EACH_SECOND: u64 = 20_000;
const LOBBY_PLACES: usize = 2_048;
const AWAY: Duration = Duration::from_millis(10);

/// Connects at its rate and sends nothing but `says`, until its standard input is closed.
fn flood(port: SocketAddr, says: &[u8]) {
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
                _ => {
                    // A peer whose connection is not there yet stays silent.
                    let _ = socket.send(says);
                    silent.push_back(socket);
                }
            }
            if silent.len() > 8_000 {
                silent.pop_front();
            }
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    let rate = made as f64 / began.elapsed().as_secs_f64();
    println!("flood: {made} handshakes, {rate:.0} a second, {failed} failed");
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
fn get_in(through: SocketAddr, auth: Auth) -> Result<Duration, String> {
    let began = Instant::now();
    let peer = Peer::begin(&through, &model(), auth).map_err(|e| e.to_string())?;
    let took = began.elapsed();
    let name = peer.get(peer.session.handle.name());
    peer.leave();
    name.map(|_| took).map_err(|e| e.to_string())
}

/// Open files and KiB of memory of this process, which runs the node.
fn costs() -> (usize, usize) {
    let files = std::fs::read_dir("/proc/self/fd").expect("there").count();
    let status = std::fs::read_to_string("/proc/self/status").expect("there");
    let memory = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let memory = memory.and_then(|kib| kib.split_whitespace().next()?.parse().ok());
    (files, memory.expect("a number"))
}

fn frame(json: &str) -> Vec<u8> {
    [&(json.len() as u32).to_be_bytes()[..], json.as_bytes()].concat()
}

/// Floods a node with connections that send `says`. The frontend must get in each time, the node's
/// memory must stay where the first two seconds brought it, and its open files within the lobby.
fn withstands(test: &str, says: &[u8]) {
    if let Ok(port) = std::env::var(PORT) {
        let says = hex::decode(std::env::var(SAYS).expect("set")).expect("digits");
        return flood(port.parse().expect("a port"), &says);
    }
    let token = Token::random().expect("random bytes");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    token.write_new(&file).expect("written");
    let node = Running::start(NodeSetup {
        auth: format!("token_file: {}", file.display()),
        ..NodeSetup::default()
    });
    let before = costs();
    let own = std::env::current_exe().expect("this program");
    let flood = Command::new(own)
        .args([test, "--ignored", "--nocapture"])
        .env(PORT, node.address.to_string())
        .env(SAYS, hex::encode(says))
        .stdin(Stdio::piped())
        .spawn();
    let flood = Flood(flood.expect("started"));
    std::thread::sleep(Duration::from_secs(2));
    let (files, memory) = costs();
    let through = far_away(node.address);
    let mut inside = 0;
    for time in 1..=20 {
        let got = get_in(through, Auth::Token(token.clone()));
        println!("{time}: {got:?}");
        inside += u32::from(got.is_ok());
        // The node serves the next frontend once this frontend's connections are down.
        std::thread::sleep(Duration::from_millis(200));
    }
    let after = costs();
    drop(flood);
    println!(
        "files and KiB: {before:?} before, {:?} after 2 s, {after:?}",
        (files, memory)
    );
    assert_eq!(inside, 20);
    assert!(after.0 < LOBBY_PLACES + 256, "{after:?}");
    assert!(after.1 < memory + (16 << 10), "{after:?}");
}

#[test]
#[ignore = "takes two cores for half a minute"]
fn silent_peers_keep_no_frontend_out() {
    withstands("silent_peers_keep", b"");
}

#[test]
#[ignore = "takes two cores for half a minute"]
fn peers_that_stop_behind_their_hello_keep_no_frontend_out() {
    withstands("peers_that_stop_behind", &hello());
}

#[test]
#[ignore = "takes two cores for half a minute"]
fn peers_with_a_forged_answer_keep_no_frontend_out() {
    let noise = "5".repeat(96);
    let answer = frame(&format!(r#"{{"type":"answer","noise":"{noise}"}}"#));
    withstands("peers_with_a_forged", &[hello(), answer].concat());
}

fn hello() -> Vec<u8> {
    let nonce = "1".repeat(64);
    frame(&format!(
        r#"{{"type":"hello","version":13,"role":"frontend","auth":"token","nonce":"{nonce}"}}"#
    ))
}
