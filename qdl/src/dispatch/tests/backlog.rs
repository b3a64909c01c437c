//! Reasons for the backlog: no slot is free, or a different thread must post.

use std::time::{Duration, Instant};

use super::{rig::*, *};

/// Eight slots whose samples get no answer. NIC threads post payloads larger than `up_to`.
fn eight_slots(up_to: u64) -> Bench {
    let b = Bench::new(RigCfgs::new(1, 8).up_to(up_to), Arc::new(Hoard::default()));
    b.connect_all(Over::Memory);
    b
}

/// Samples that found no slot, most of them at once, and those that NIC threads were to post.
fn backlog(b: &Bench) -> (u64, u64, u64) {
    let c = b.dispatcher.counts();
    (c.backlogged, c.backlog_max, c.handed_over)
}

/// Backlogged samples, and most of them at once.
fn waiting(b: &Bench) -> (u64, u64) {
    let c = b.dispatcher.counts();
    (c.backlogged, c.backlog_max)
}

#[test]
fn samples_that_have_a_slot_are_in_neither_count() {
    let b = eight_slots(1 << 20);
    b.issue(0..5);
    assert_eq!(waiting(&b), (0, 0));
    b.issue(5..20);
    // Three had one.
    assert_eq!(waiting(&b), (12, 12));
    b.issue(20..21);
    assert_eq!(waiting(&b), (13, 13));
    b.dispatcher.abort("the test is over");
}

#[test]
fn large_samples_are_handed_over_as_long_as_slots_are_free() {
    let b = eight_slots(0);
    b.issue(0..5);
    assert_eq!(backlog(&b), (0, 0, 5));
    b.wait_posted(5);
    // All at once: for three there is a slot, the others wait for one.
    b.issue(5..25);
    assert_eq!(backlog(&b), (17, 17, 8));
    b.wait_posted(8);
    b.issue(25..26);
    assert_eq!(backlog(&b), (18, 18, 8));
    b.dispatcher.abort("the test is over");
}

#[test]
fn samples_that_go_again_are_in_neither_count() {
    let b = eight_slots(1 << 20);
    b.issue(0..6);
    b.dispatcher.give_up(0, 1, Broken::Closed);
    b.wait_events(1);
    let c = b.dispatcher.counts();
    assert_eq!((backlog(&b), c.again), ((0, 0, 0), 6));
    // Without a connection there is no slot.
    b.issue(6..8);
    assert_eq!(backlog(&b), (2, 8, 0));
    b.dispatcher.abort("the test is over");
}

#[test]
fn by_health_large_samples_are_handed_over_too() {
    let b = Bench::digests(RigCfgs::new(2, 8).up_to(0).policy(Policy::Best));
    b.connect_all(Over::Memory);
    let end = Instant::now() + Duration::from_secs(10);
    // A rail takes samples once the arbiter knows that it is up.
    let mut id = 0;
    while b.dispatcher.counts().handed_over == 0 {
        assert!(Instant::now() < end, "{:?}", b.dispatcher.counts());
        b.issue(id..id + 1);
        id += 1;
    }
    b.drain();
    let (none, _, handed_over) = backlog(&b);
    assert_eq!(none + handed_over, id);
}

#[test]
fn no_sample_waits_while_a_connection_has_room() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        let cfgs = RigCfgs::new(4, 16).wait(Wait::asleep());
        let b = Bench::new(cfgs, Arc::new(Hoard::default()));
        b.connect_all(Over::Tcp);
        let gate = std::sync::Barrier::new(3);
        std::thread::scope(|s| {
            for t in 0..3u64 {
                let (b, gate) = (&b, &gate);
                s.spawn(move || {
                    gate.wait();
                    for i in 0..4 {
                        let first = t * 100 + i * 5;
                        b.issue(first..first + 5);
                    }
                });
            }
        });
        // 60 samples, 64 slots, and no answers.
        eventually_or(
            || format!("{:?}", b.dispatcher.counts()),
            || !b.dispatcher.shared.has_backlog(),
        );
    }
}
