//! Real threads and sockets: samples come back, and the counts agree.

use super::{rig::*, *};

#[test]
fn all_samples_come_back_in_bursts_of_any_size() {
    const ALL: u64 = 5_000;
    for (staged, up_to) in [(false, 1 << 20), (false, 0), (true, 1 << 20)] {
        let b = Bench::digests(RigCfgs::new(4, 16).staged(staged).up_to(up_to));
        b.connect_all(Over::Tcp);
        let (mut id, mut burst) = (0, 1);
        while id < ALL {
            let end = (id + burst).min(ALL);
            b.issue(id..end);
            (id, burst) = (end, 1 + burst * 7 % 150);
        }
        b.drain();
        b.dispatcher.stop();
        b.check(ALL);
        assert_eq!(b.dispatcher.counts().connections_lost, 0);
        let (copies, bytes) = b.dispatcher.staged();
        assert_eq!((copies, bytes > 0), (if staged { ALL } else { 0 }, staged));
    }
}

#[test]
fn samples_alike_are_recorded_together_and_each_once() {
    let b = Bench::of(2, 64);
    b.connect_all(Over::Tcp);
    let (bursts, size) = (100, 20);
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
    let records = b.book.lock().times.len() as u64;
    assert!(records < n / 2, "{records} for {n} samples");
}

#[test]
fn a_connection_counts_what_it_did_and_the_counts_agree() {
    // Each sample finds the NIC threads asleep, or on their way to sleep.
    let b = Bench::digests(RigCfgs::new(2, 8).wait(Wait::asleep()));
    b.connect_all(Over::Tcp);
    let n = 20;
    for id in 0..n {
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
    let sleeps = b.dispatcher.counts().sleeps;
    let wakeups = sum(|l| l.wakeups);
    assert!(
        (1..=2 * sleeps).contains(&wakeups),
        "{sleeps}: {connections:?}"
    );
    assert!(sum(|l| l.tx.syscalls) >= n && sum(|l| l.rx.syscalls) >= n);
    assert!(sum(|l| l.tx.copies) <= n);
}
