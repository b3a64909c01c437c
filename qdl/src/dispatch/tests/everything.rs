//! Every issued sample comes back, over every fabric and in any bursts, and the work is counted.

use std::{sync::Arc, time::Duration};

use super::{rig::*, *};
use crate::serve::{Arrival, Service};

/// Over this, staged or not, posted by the issuer up to a burst of so many bytes.
#[test]
fn all_samples_come_back_over_every_fabric() {
    for (over, staged, up_to) in [
        (Over::Memory, false, 1 << 20),
        (Over::Tcp, false, 1 << 20),
        (Over::Tcp, false, 0),
        (Over::Tcp, true, 1 << 20),
    ] {
        let b = Bench::digests(RigCfgs::new(4, 16).staged(staged).up_to(up_to));
        all_come_back(&b, over);
        let (copies, bytes) = b.dispatcher.staged();
        assert_eq!(copies, if staged { ALL } else { 0 });
        assert_eq!(bytes > 0, staged);
    }
}

const ALL: u64 = 20_000;

/// Every sample of many is answered once, over all connections of a rig.
pub(crate) fn all_come_back(b: &Bench, over: Over) {
    b.connect_all(over);
    b.issue_in_bursts(ALL);
    b.drain();
    b.dispatcher.stop();
    b.check(ALL);
    assert_eq!(b.dispatcher.counts().connections_lost, 0);
}

#[test]
fn samples_alike_are_recorded_together_and_each_once() {
    let b = Bench::of(2, 64);
    b.connect_all(Over::Tcp);
    let (bursts, size) = (300, 20);
    for burst in 0..bursts {
        let alike = b.sample(burst);
        let samples = (0..size).map(|i| Sample {
            id: burst * size + i,
            ..alike
        });
        b.dispatcher.issue(&samples.collect::<Vec<_>>());
        b.drain();
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
    let b = Bench::of(2, 8);
    b.connect_all(Over::Tcp);
    let n = 20;
    for id in 0..n {
        // Longer than the NIC threads spin, so that each sample finds them asleep.
        std::thread::sleep(Duration::from_millis(2));
        b.dispatcher.issue(&[b.sample(id)]);
        b.drain();
    }
    b.dispatcher.stop();
    let connections = b.dispatcher.connection_records();
    let sum = |f: fn(&ConnectionRecord) -> u64| connections.iter().map(f).sum::<u64>();
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

/// Keeps the first `wanted` samples in flight, and answers the others at once.
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
fn a_waiting_doorbell_is_rung_without_further_samples() {
    rings_without_further_samples(1 << 20);
}

/// Samples with company, to connections whose NIC threads sleep at once.
pub(crate) fn rings_without_further_samples(up_to: u64) {
    let company = Arc::new(Company {
        kept: Hoard::default(),
        wanted: 20,
        came: AtomicU64::new(0),
    });
    let cfgs = RigCfgs::new(1, 64).up_to(up_to).wait(Wait::asleep());
    let b = Bench::new(cfgs, company.clone());
    b.connect_all(Over::Tcp);
    let mut id = 0;
    for round in 0..3_000u64 {
        // The first sample rings; those right behind it may wait.
        for _ in 0..1 + round % 4 {
            b.dispatcher.issue(&[b.sample(id)]);
            id += 1;
        }
        eventually("a sample was posted and never left", || {
            company.came.load(Ordering::SeqCst) >= id
        });
    }
    let mut kept = std::mem::take(&mut *company.kept.0.lock().expect("alive"));
    Digest.arrived(&mut kept);
    b.drain();
    b.dispatcher.stop();
    b.check(id);
}
