//! Every issued sample comes back, over every fabric and in any bursts, and the work is counted.

use std::time::Duration;

use super::{rig::*, *};

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
