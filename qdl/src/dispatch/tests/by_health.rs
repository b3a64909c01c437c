//! Policies by health: each keeps the guarantees of the other policies, and each pick ends.

use super::{everything::all_come_back, rig::*, *};

/// Runs `then` under every policy by health, with the issuing thread or NIC threads posting.
fn by_health(then: impl Fn(&Bench)) {
    let delta = Score::from_steps(8192);
    let spray = |above_only| Policy::HealthSpray { delta, above_only };
    for (policy, up_to) in [
        (Policy::Best, 1 << 20),
        (Policy::HealthBestFit, 0),
        (spray(false), 1 << 20),
        (spray(true), 0),
    ] {
        let b = Bench::digests(RigCfgs::new(3, 8).up_to(up_to).policy(policy));
        then(&b);
        // The last completions may not have reached the arbiter before the stop.
        b.dispatcher.stop();
        let rails = b.dispatcher.rail_report(0);
        let picked: u64 = rails.iter().map(|r| r.picked).sum();
        assert!(picked >= b.dispatcher.counts().posted, "{rails:?}");
        // Every pick has ended, with an answer or by being taken back.
        assert!(rails.iter().all(|r| r.assigned_bytes == 0), "{rails:?}");
    }
}

/// Cuts each of three connections twenty times and reconnects it, while samples flow.
fn cut_and_make_again(b: &Bench) {
    let mut faults = b.connect_all(Over::Memory);
    let n = 6000u64;
    let mut epochs = [1u32; 3];
    for id in 0..n {
        let s = b.sample(id);
        b.dispatcher.issue(&[s]);
        if id % 100 == 50 {
            let connection = (id / 100) as usize % 3;
            if let Some(f) = faults[connection].take() {
                f.cut();
                // The connection is down before it is made again.
                let seen = |e: &DispatchEvent| {
                    matches!(e, DispatchEvent::ConnectionLost { connection: l, epoch, .. }
                        if (*l, *epoch) == (connection, epochs[connection]))
                };
                eventually_or(
                    || format!("the loss of connection {connection} was never reported"),
                    || b.book.events.lock().expect("alive").iter().any(seen),
                );
                epochs[connection] += 1;
                faults[connection] = b.connect(connection, epochs[connection], Over::Memory);
            }
        }
    }
    b.drain();
    b.check(n);
    assert_eq!(b.dispatcher.counts().connections_lost, 60);
}

#[test]
fn by_health_samples_of_a_lost_connection_go_again_over_another() {
    by_health(|b| {
        cut_and_make_again(b);
        let events = b.book.events.lock().expect("alive");
        let rail = |e: &&DispatchEvent| matches!(e, DispatchEvent::Rail { .. });
        assert!(events.iter().filter(rail).count() >= 2, "{events:?}");
    });
}

#[test]
fn by_health_everything_comes_back_in_bursts_of_any_size() {
    by_health(|b| all_come_back(b, Over::Tcp));
}

#[test]
fn by_health_a_call_rings_once_for_its_samples_of_a_connection() {
    // Its NIC thread sleeps: the issuing thread posts.
    let cfgs = RigCfgs::new(1, 64)
        .policy(Policy::Best)
        .wait(Wait::asleep());
    let b = Bench::digests(cfgs);
    b.connect_all(Over::Tcp);
    let (calls, size) = (50, 16);
    for call in 0..calls {
        let of_call = call * size..(call + 1) * size;
        b.issue(of_call);
        b.drain();
    }
    b.dispatcher.stop();
    b.check(calls * size);
    let tx = b.dispatcher.connection_records()[0].tx;
    assert_eq!(tx.writes, calls * size);
    // A NIC thread that wakes up also rings for the samples that a call has left.
    assert!(tx.syscalls <= 2 * calls, "{tx:?}");
}

#[test]
fn a_look_that_is_too_early_does_not_put_the_next_fold_off() {
    let b = Bench::digests(RigCfgs::new(2, 8).policy(Policy::Best));
    let shared = &b.dispatcher.shared;
    let health = shared.health.get().expect("by health");
    let due = || health.next_tick_ns.load(Ordering::Relaxed);
    // One hour ahead, so that the NIC threads' own calls are all too early.
    let now = now_ns() + 3_600_000_000_000;
    shared.health_tick(now);
    assert_eq!(due(), now + 1_000_000);
    for at in (0..10).map(|i| now + i * 100_000) {
        shared.health_tick(at);
        assert_eq!(due(), now + 1_000_000);
    }
    shared.health_tick(now + 1_000_000);
    assert_eq!(due(), now + 2_000_000);
}
