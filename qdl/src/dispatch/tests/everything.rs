//! What is issued comes back, by whatever way and in
//! whatever bursts, and what was done for it is counted.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{rig::*, *};
use crate::serve::{Arrival, Service};

fn everything_comes_back(over: &Over, staged: bool, up_to: usize) {
    let b = Bench::new(4, 16, Arc::new(Digest), staged, up_to);
    (0..4).for_each(|connection| {
        b.connect(connection, 1, over);
    });
    b.wait_up(4);
    let n = 20_000u64;
    b.issue_in_bursts(n);
    assert!(
        b.dispatcher.drain(Duration::from_secs(30)),
        "{:?}",
        b.dispatcher.counts()
    );
    b.dispatcher.stop();
    b.check(n);
    let (copies, bytes) = b.dispatcher.staged();
    assert_eq!(copies, if staged { n } else { 0 });
    assert_eq!(bytes > 0, staged);
}

#[test]
fn everything_comes_back_over_memory() {
    everything_comes_back(&Over::Memory, false, 1 << 20);
}

#[test]
fn everything_comes_back_over_tcp_posted_by_the_issuer() {
    everything_comes_back(&Over::Tcp, false, 1 << 20);
}

#[test]
fn everything_comes_back_over_tcp_posted_by_nic_threads() {
    everything_comes_back(&Over::Tcp, false, 0);
}

#[test]
fn staged_samples_are_copied_once_each() {
    everything_comes_back(&Over::Tcp, true, 1 << 20);
}

#[test]
fn samples_alike_are_recorded_together_and_each_once() {
    let b = Bench::new(2, 64, Arc::new(Digest), false, 1 << 20);
    (0..2).for_each(|connection| {
        b.connect(connection, 1, &Over::Tcp);
    });
    b.wait_up(2);
    let (bursts, size) = (300, 20);
    for burst in 0..bursts {
        let alike = b.sample(burst);
        let samples = (0..size).map(|i| Sample {
            id: burst * size + i,
            ..alike
        });
        b.dispatcher.issue(&samples.collect::<Vec<_>>());
        assert!(b.dispatcher.drain(Duration::from_secs(10)));
    }
    b.dispatcher.stop();
    let n = bursts * size;
    let bytes = (0..bursts).map(|burst| size * u64::from(b.sample(burst).len));
    b.check_recorded(n, bytes.sum());
    let records = b.book.records.load(Ordering::Relaxed);
    assert!(records < n / 2, "{records} for {n} samples");
}

#[test]
fn a_connection_counts_what_it_did_and_the_counts_agree() {
    let b = Bench::new(2, 8, Arc::new(Digest), false, 1 << 20);
    (0..2).for_each(|connection| {
        b.connect(connection, 1, &Over::Tcp);
    });
    b.wait_up(2);
    let n = 20;
    for id in 0..n {
        // Longer than the NIC threads spin, so that what comes finds them asleep.
        std::thread::sleep(Duration::from_millis(2));
        b.dispatcher.issue(&[b.sample(id)]);
        assert!(b.dispatcher.drain(Duration::from_secs(10)));
    }
    b.dispatcher.stop();
    let connections = b.dispatcher.connection_records();
    let sum = |f: fn(&ConnectionCounts) -> u64| connections.iter().map(f).sum::<u64>();
    assert_eq!(sum(|l| l.tx.writes), n);
    assert_eq!(sum(|l| l.rx.writes), n);
    assert_eq!(sum(|l| l.rx.bytes), n * RESPONSE as u64);
    let most = connections.iter().map(|l| l.in_flight_max).max();
    assert_eq!(most, Some(1), "{connections:?}");
    assert!(
        sum(|l| l.wakeups) > 0,
        "nothing woke a sleeper: {connections:?}"
    );
    let sleeps = b.dispatcher.counts().sleeps;
    assert!(
        sum(|l| l.wakeups) <= 2 * sleeps,
        "{sleeps}: {connections:?}"
    );
    assert!(sum(|l| l.tx.syscalls) >= n && sum(|l| l.rx.syscalls) >= n);
    assert!(sum(|l| l.tx.copies) <= n);
}

/// Keeps the first samples, so that there is company for ever, and answers the others at once.
struct Company {
    kept: Hoard,
    wanted: usize,
    came: AtomicU64,
}

impl Service for Company {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let came = arrivals.len() as u64;
        {
            let mut kept = self.kept.0.lock().expect("alive");
            while kept.len() < self.wanted {
                let Some(a) = arrivals.pop() else { break };
                kept.push(a);
            }
        }
        Digest.arrived(arrivals);
        self.came.fetch_add(came, Ordering::SeqCst);
    }
}

#[test]
fn a_doorbell_that_waits_is_rung_though_nobody_comes_by() {
    rung_though_nobody_comes_by(1 << 20);
}

/// Samples with company, to connections whose NIC threads sleep at once.
pub fn rung_though_nobody_comes_by(up_to: usize) {
    let company = Arc::new(Company {
        kept: Hoard::default(),
        wanted: 20,
        came: AtomicU64::new(0),
    });
    let b = Bench::with(
        1,
        64,
        company.clone(),
        false,
        up_to,
        Policy::default(),
        Wait::asleep(),
    );
    b.connect(0, 1, &Over::Tcp);
    b.wait_up(1);
    let mut id = 0;
    for round in 0..3_000u64 {
        // One rings; those right behind it may wait.
        for _ in 0..1 + round % 4 {
            b.dispatcher.issue(&[b.sample(id)]);
            id += 1;
        }
        let end = Instant::now() + Duration::from_secs(20);
        while company.came.load(Ordering::SeqCst) < id {
            assert!(Instant::now() < end, "a sample was posted and never left");
            std::thread::yield_now();
        }
    }
    let mut kept = std::mem::take(&mut *company.kept.0.lock().expect("alive"));
    Digest.arrived(&mut kept);
    assert!(b.dispatcher.drain(Duration::from_secs(20)));
    b.dispatcher.stop();
    b.check(id);
}
