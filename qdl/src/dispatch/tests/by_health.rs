//! Policies by health: doorbells, and the time of the next fold.

use super::{front::*, rig::*, *};

#[test]
fn a_call_rings_once_for_its_samples_of_a_connection() {
    let front = Front::new(RigCfgs {
        nics: 1,
        ..RigCfgs::new(1, 64).policy(Policy::Best)
    });
    let _far = front.connect(0, 1);
    // The NIC thread sleeps: the issuing thread posts.
    for calls in 1..4 {
        front.issue(calls * 16..(calls + 1) * 16);
        let tx = front.dispatcher.connection_records()[0].tx;
        assert_eq!((tx.writes, tx.syscalls), (16 * calls, calls));
    }
}

#[test]
fn a_look_that_is_too_early_does_not_put_the_next_fold_off() {
    let front = Front::new(RigCfgs::new(2, 8).policy(Policy::Best));
    let shared = &front.dispatcher.shared;
    let health = shared.choice.health().expect("by health");
    let due = || health.next_tick_ns.load(Ordering::Relaxed);
    let now = now_ns() + 3_600_000_000_000;
    shared.fold_scores(now);
    assert_eq!(due(), now + 1_000_000);
    for at in (0..10).map(|i| now + i * 100_000) {
        shared.fold_scores(at);
        assert_eq!(due(), now + 1_000_000);
    }
    shared.fold_scores(now + 1_000_000);
    assert_eq!(due(), now + 2_000_000);
}
