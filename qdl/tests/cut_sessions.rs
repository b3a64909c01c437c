//! Sessions cut at random moments: after its end, however caused, a session holds no resources. The
//! tests count memory budget, queue pairs, registrations, descriptors and threads.
//!
//! `QDL_CUT_SESSIONS` sets the number of sessions per fabric, `QDL_CUT_SEED` the seed. If
//! `QDL_RDMA_DEVICES` names two devices, the queue pairs are on them, and the memory that the
//! kernel has pinned for this process measures registrations.
#![cfg(not(feature = "loom"))]

#[path = "cluster/harness.rs"]
mod harness;

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use harness::*;
use qdl::testkit::eventually_or;
use qdl::{
    config::NicConfig,
    run::{request_stride, response_stride},
};
use verbs::stub;
use xxhash_rust::xxh3::xxh3_64;

const CONNECTIONS: usize = 2;
const SLOTS: usize = 16;
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest read of the proxy before it looks whether bytes may pass.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// More bytes than a session sends until its connections are up.
const WORDS: u64 = 6000;

static ALONE: Mutex<()> = Mutex::new(());

fn number(key: &str, default: u64) -> u64 {
    let given = std::env::var(key).ok();
    given.map_or(default, |n| n.parse().expect("a number"))
}

/// A proxy in front of an accelerator's control plane that cuts connections.
struct Scissors {
    address: SocketAddr,
    left: Arc<AtomicI64>,
}

impl Scissors {
    fn before(node: SocketAddr) -> Scissors {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("bound");
        let left = Arc::new(AtomicI64::new(0));
        let may_pass = left.clone();
        thread::spawn(move || {
            for front in listener.incoming().flatten() {
                let Ok(back) = TcpStream::connect(node) else {
                    continue;
                };
                let copies = [&front, &back].map(|s| s.try_clone().expect("a descriptor"));
                let [front_too, back_too] = copies;
                for (from, to) in [(front, back_too), (back, front_too)] {
                    let left = may_pass.clone();
                    thread::spawn(move || copy(from, to, &left));
                }
            }
        });
        Scissors { address, left }
    }

    /// Cuts the connections, and waits until their threads must have noticed.
    fn cut(&self) {
        self.left.store(0, SeqCst);
        thread::sleep(8 * LOOK_EVERY);
    }
}

/// Forwards one direction until its end. Ends both directions once no more bytes may pass.
fn copy(mut from: TcpStream, mut to: TcpStream, left: &AtomicI64) {
    from.set_read_timeout(Some(LOOK_EVERY)).expect("set");
    let mut bytes = [0; 512];
    while left.load(SeqCst) > 0 {
        match from.read(&mut bytes) {
            Ok(n @ 1..) => {
                let may = left.fetch_sub(n as i64, SeqCst).clamp(0, n as i64) as usize;
                if to.write_all(&bytes[..may]).is_err() {
                    break;
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            // The other direction may still carry data.
            Ok(_) | Err(_) => return drop(to.shutdown(Shutdown::Write)),
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Returns the KiB that the kernel has pinned for devices.
fn pinned() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("there");
    let line = status.lines().find_map(|l| l.strip_prefix("VmPin:"));
    let number = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
    number.expect("a number")
}

/// The process's descriptors and threads, without the threads that a runtime keeps in reserve.
fn held() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("there").count();
    let threads = std::fs::read_dir("/proc/self/task").expect("there");
    let name = |t: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(t.ok()?.path().join("comm")).ok()
    };
    let threads = threads
        .filter_map(name)
        .filter(|n| !n.starts_with("tokio-"));
    (descriptors, threads.count())
}

/// Waits until `holds`; on failure panics with the current value.
fn wait_for<T: std::fmt::Debug>(what: &str, now: impl Fn() -> T, holds: impl Fn(&T) -> bool) {
    eventually_or(|| format!("{what}: {:?} are left", now()), || holds(&now()));
}

fn cut_at_random_moments(accelerators: NicConfig, nic: &str) {
    let _alone = ALONE.lock();
    let sessions = number("QDL_CUT_SESSIONS", 1000);
    let seed = number("QDL_CUT_SEED", 1);
    let m = model();
    let slot = request_stride(&m).expect("small") + response_stride(&m).expect("small");
    // Just enough for one frontend: any leak refuses the next.
    let memory = CONNECTIONS * SLOTS * slot;
    let node = Running::start(NodeSetup {
        memory,
        nics: vec![accelerators],
        ..NodeSetup::default()
    });
    let scissors = Scissors::before(node.address);
    let nics = format!("  - {{{nic}: {CONNECTIONS}, slots: {SLOTS}}}\n");
    let extra = "deadlines: {connect_ms: 5000}\n";
    let cut = config_at(&[scissors.address], &nics, extra);
    let whole = || {
        scissors.left.store(i64::MAX, SeqCst);
        let end = Instant::now() + PATIENCE;
        // The previous session may not have ended yet.
        let front = loop {
            match Front::try_connect(&cut, 4, 100) {
                Ok(front) => break front,
                Err(e) => assert!(e.contains("is served") && Instant::now() < end, "{e}"),
            }
        };
        front.issue(0..100);
        front.wait_done();
        front.check();
    };
    // The first session allocates what exists only once.
    whole();
    wait_for("queue pairs", stub::live, |l| l.queue_pairs == 0);
    let (before, live, pinned_before) = (held(), stub::live(), pinned());
    let mut up = 0;
    for i in 0..sessions {
        let dice = |what: u64| xxh3_64(&[seed, i, what].map(u64::to_le_bytes).concat());
        scissors.left.store((dice(0) % WORDS) as i64, SeqCst);
        let Ok(front) = Front::try_connect(&cut, 4, 100) else {
            continue;
        };
        up += 1;
        front.issue(0..(dice(1) % 100) as usize);
        match dice(2) % 4 {
            0 => scissors.cut(),
            1 => front.wait_done(),
            2 => drop(front.cluster.finish()),
            _ => {}
        }
    }
    assert!(
        (sessions / 20..sessions).contains(&up),
        "{up} of {sessions} came up"
    );
    whole();
    wait_for("queue pairs and registrations", stub::live, |l| *l == live);
    wait_for("KiB pinned", pinned, |p| *p <= pinned_before);
    // Some descriptors of the first session may have still been open.
    wait_for("descriptors and threads", held, |h| {
        h.0 <= before.0 && h.1 <= before.1
    });
}

#[test]
fn nothing_is_left_of_sessions_over_tcp() {
    let listen = "127.0.0.1:0".parse().expect("address");
    cut_at_random_moments(NicConfig::tcp(listen), "address: 127.0.0.1, connections");
}

#[test]
fn nothing_is_left_of_sessions_over_queue_pairs() {
    let given = std::env::var("QDL_RDMA_DEVICES").unwrap_or("stub0,stub1".to_owned());
    let (one, two) = given.split_once(',').expect("two devices");
    cut_at_random_moments(NicConfig::ib(two), &format!("device: {one}, queue_pairs"));
}
