//! What it costs a thread here to hand bytes to a socket, and to wake another thread.
//!
//! Machines differ by more than ten: a system call takes a fraction of a microsecond or several, a
//! thread is awake after five microseconds or after fifty. So it is measured, once in a process and
//! in some milliseconds, before the first sample; who posts refines it from what its own doorbells
//! take (`doorbell`).

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::{NicThreadCfgs, NicThreadHandle, NicWork, Spin, Turn, join_all, spawn};
use crate::{clock::now_ns, fabric::Armed, os::Near};

/// Bytes of a write that shows what the call costs, and of one that shows what copying costs.
const SHORT: usize = 64;
const LONG: usize = 32 << 10;
/// Turns of each measurement, of which the middle one counts.
const WRITES: usize = 33;
const WAKES: usize = 9;
/// No longer than this for either.
const PATIENCE: Duration = Duration::from_millis(20);

/// What posting costs on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostingCosts {
    /// A short write to a socket, ns.
    pub call_ns: u64,
    /// What each further KiB of it takes, ns.
    pub kib_ns: u64,
    /// Waking a thread that sleeps takes who wakes it so long, ns.
    pub wake_ns: u64,
    /// And so long it takes until that thread runs, ns.
    pub awake_ns: u64,
}

impl Default for PostingCosts {
    /// Where nothing could be measured: of a machine in the middle.
    fn default() -> Self {
        PostingCosts {
            call_ns: 2_000,
            kib_ns: 100,
            wake_ns: 2_000,
            awake_ns: 20_000,
        }
    }
}

static HERE: OnceLock<PostingCosts> = OnceLock::new();

impl PostingCosts {
    /// Those of this machine; the first who asks measures them.
    pub fn here() -> Self {
        *HERE.get_or_init(Self::measure)
    }

    /// The same, where somebody has asked before.
    pub(super) fn known() -> Self {
        HERE.get().copied().unwrap_or_default()
    }

    /// Over loopback, and with a thread that sleeps as a NIC thread does. What cannot be measured
    /// here is as by default.
    fn measure() -> Self {
        let mut costs = PostingCosts::default();
        if let Ok((call_ns, kib_ns)) = writes() {
            costs.call_ns = call_ns;
            costs.kib_ns = kib_ns.unwrap_or(costs.kib_ns);
        }
        if let Some((wake_ns, awake_ns)) = wakes() {
            costs.wake_ns = wake_ns;
            costs.awake_ns = awake_ns;
        }
        costs
    }

    /// Writing so many bytes, ns.
    pub fn write_ns(&self, bytes: u64) -> u64 {
        self.call_ns
            .saturating_add(bytes.saturating_mul(self.kib_ns) >> 10)
    }
}

/// The middle one, at least 1.
fn middle(times: &mut [u64]) -> Option<u64> {
    times.sort_unstable();
    times.get(times.len() / 2).map(|t| (*t).max(1))
}

/// A short write and each further KiB, ns; the latter where the socket takes that much at once.
fn writes() -> std::io::Result<(u64, Option<u64>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    near.set_write_timeout(Some(PATIENCE))?;
    far.set_read_timeout(Some(PATIENCE))?;
    let payload = vec![1; LONG];
    let mut sink = vec![0; LONG];
    let mut middle_of = |bytes: usize| {
        let end = Instant::now() + PATIENCE;
        let mut times = Vec::with_capacity(WRITES);
        while times.len() < WRITES && Instant::now() < end {
            let began = now_ns();
            let written = near.write(&payload[..bytes])?;
            let took = now_ns() - began;
            far.read_exact(&mut sink[..written])?;
            if written == bytes {
                times.push(took);
            }
        }
        middle(&mut times).ok_or_else(|| std::io::Error::other("nothing was written in time"))
    };
    let short = middle_of(SHORT)?;
    let copied = |long: u64| (long.saturating_sub(short) << 10) / LONG as u64;
    Ok((short, middle_of(LONG).ok().map(copied)))
}

/// Notes when it turned last.
struct Sleeper {
    turned_ns: Arc<AtomicU64>,
    stop: Arc<AtomicU64>,
}

impl NicWork for Sleeper {
    fn turn(&mut self, _: u64) -> Turn {
        self.turned_ns.store(now_ns(), Ordering::SeqCst);
        match self.stop.load(Ordering::SeqCst) {
            0 => Turn::Idle,
            _ => Turn::Stop,
        }
    }
    fn arm(&mut self) -> Armed {
        match self.stop.load(Ordering::SeqCst) {
            0 => Armed::Sleep,
            _ => Armed::Ready,
        }
    }
    fn new_descriptors(&mut self, _: &mut dyn FnMut(std::os::fd::RawFd)) {}
}

/// What waking a thread takes who wakes it, and until it runs, ns.
fn wakes() -> Option<(u64, u64)> {
    let (turned, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let work = Sleeper {
        turned_ns: turned.clone(),
        stop: stop.clone(),
    };
    let cfgs = NicThreadCfgs {
        name: "costs".into(),
        spin: Spin::new(0),
        tick_ns: PATIENCE.as_nanos() as u64,
        near: Near::default(),
        begin: None,
    };
    let (handle, thread) = spawn(cfgs, move |_| work).ok()?;
    let (mut calls, mut until) = (Vec::new(), Vec::new());
    let end = Instant::now() + PATIENCE;
    while calls.len() < WAKES && Instant::now() < end {
        if let Some((call, runs)) = one_wake(&handle, &turned, end) {
            calls.push(call);
            until.push(runs);
        }
    }
    stop.store(1, Ordering::SeqCst);
    handle.wake();
    join_all(vec![thread], PATIENCE);
    Some((middle(&mut calls)?, middle(&mut until)?))
}

fn one_wake(handle: &NicThreadHandle, turned: &AtomicU64, end: Instant) -> Option<(u64, u64)> {
    while !handle.needs_waking() {
        if Instant::now() >= end {
            return None;
        }
        std::thread::yield_now();
    }
    // It goes to sleep behind its last look.
    std::thread::sleep(Duration::from_micros(100));
    let began = now_ns();
    handle.wake();
    let called = now_ns();
    while turned.load(Ordering::SeqCst) < began {
        if Instant::now() >= end {
            return None;
        }
        std::hint::spin_loop();
    }
    let runs = turned.load(Ordering::SeqCst) - began;
    Some((called - began, runs))
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_once_is_kept_and_is_something() {
        let began = Instant::now();
        let costs = PostingCosts::here();
        assert_eq!(costs, PostingCosts::here());
        assert_eq!(costs, PostingCosts::known());
        assert!(costs.call_ns > 0 && costs.wake_ns > 0 && costs.awake_ns > 0);
        // Each part has its patience, and its thread is left to itself at last.
        assert!(began.elapsed() < Duration::from_secs(10), "{costs:?}");
    }

    #[test]
    fn longer_writes_cost_more_by_what_a_kib_takes() {
        let costs = PostingCosts {
            call_ns: 1_000,
            kib_ns: 100,
            ..PostingCosts::default()
        };
        assert_eq!(costs.write_ns(0), 1_000);
        assert_eq!(costs.write_ns(10 << 10), 2_000);
        assert_eq!(costs.write_ns(u64::MAX), 1_000 + (u64::MAX >> 10));
    }

    #[test]
    fn the_middle_one_is_not_moved_by_one_that_lost_its_core() {
        assert_eq!(middle(&mut [7, 3, 9_000_000]), Some(7));
        assert_eq!(middle(&mut [0]), Some(1));
        assert_eq!(middle(&mut []), None);
    }
}
