//! Reasons for the backlog: no slot is free, or a different thread must post.

use std::time::{Duration, Instant};

use super::{rig::*, *};

/// A bench with eight slots whose samples are never answered. NIC threads post payloads above
/// `up_to`.
fn eight_slots(up_to: usize) -> Bench {
    let b = Bench::new(1, 8, Arc::new(Hoard::default()), false, up_to);
    b.connect(0, 1, &Over::Memory);
    b.wait_up(1);
    b
}

fn issue(b: &Bench, ids: std::ops::Range<u64>) {
    let samples: Vec<_> = ids.map(|id| b.sample(id)).collect();
    b.dispatcher.issue(&samples);
}

/// Backlogged samples, most of them at once, and samples handed over to NIC threads.
fn backlog(b: &Bench) -> (u64, u64, u64) {
    let c = b.dispatcher.counts();
    (c.backlogged, c.backlog_max, c.handed_over)
}

/// Backlogged samples, and most of them at once.
fn waiting(b: &Bench) -> (u64, u64) {
    let c = b.dispatcher.counts();
    (c.backlogged, c.backlog_max)
}

fn wait_posted(b: &Bench, n: u64) {
    let end = Instant::now() + Duration::from_secs(10);
    while b.dispatcher.counts().posted < n {
        assert!(Instant::now() < end, "{:?}", b.dispatcher.counts());
        std::thread::yield_now();
    }
}

#[test]
fn samples_that_have_a_slot_are_in_neither_count() {
    let b = eight_slots(1 << 20);
    issue(&b, 0..5);
    assert_eq!(backlog(&b), (0, 0, 0));
    issue(&b, 5..20);
    // Three samples had a slot.
    assert_eq!(waiting(&b), (12, 12));
    issue(&b, 20..21);
    assert_eq!(waiting(&b), (13, 13));
    b.dispatcher.abort("the test is over");
}

#[test]
fn large_samples_are_handed_over_as_long_as_slots_are_free() {
    let b = eight_slots(0);
    issue(&b, 0..5);
    assert_eq!(backlog(&b), (0, 0, 5));
    wait_posted(&b, 5);
    // All in one call: three samples have a slot, the others wait for one.
    issue(&b, 5..25);
    assert_eq!(backlog(&b), (17, 17, 8));
    wait_posted(&b, 8);
    issue(&b, 25..26);
    assert_eq!(backlog(&b), (18, 18, 8));
    b.dispatcher.abort("the test is over");
}

#[test]
fn what_goes_again_is_in_neither_count() {
    let b = eight_slots(1 << 20);
    issue(&b, 0..6);
    b.dispatcher.give_up(0, 1, Broken::Closed);
    b.wait_events(1);
    let c = b.dispatcher.counts();
    assert_eq!((backlog(&b), c.again), ((0, 0, 0), 6));
    // Without a connection there is no slot.
    issue(&b, 6..8);
    assert_eq!(backlog(&b), (2, 8, 0));
    b.dispatcher.abort("the test is over");
}

#[test]
fn by_health_large_samples_are_handed_over_too() {
    let b = Bench::by_health(2, 8, 0, Policy::Best);
    (0..2).for_each(|connection| {
        b.connect(connection, 1, &Over::Memory);
    });
    b.wait_up(2);
    let end = Instant::now() + Duration::from_secs(10);
    // A rail takes samples once the arbiter knows that it is up.
    let mut id = 0;
    while b.dispatcher.counts().handed_over == 0 {
        assert!(Instant::now() < end, "{:?}", b.dispatcher.counts());
        issue(&b, id..id + 1);
        id += 1;
    }
    assert!(b.dispatcher.drain(Duration::from_secs(10)));
    let (none, _, handed_over) = backlog(&b);
    assert_eq!(none + handed_over, id);
}

#[test]
fn no_sample_waits_while_a_connection_has_room() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        let b = Bench::with(
            4,
            16,
            Arc::new(Hoard::default()),
            false,
            1 << 20,
            Policy::default(),
            Wait::asleep(),
        );
        (0..4).for_each(|c| drop(b.connect(c, 1, &Over::Tcp)));
        b.wait_up(4);
        let gate = std::sync::Barrier::new(3);
        std::thread::scope(|s| {
            for t in 0..3u64 {
                let (b, gate) = (&b, &gate);
                s.spawn(move || {
                    gate.wait();
                    for i in 0..4 {
                        let first = t * 100 + i * 5;
                        issue(b, first..first + 5);
                    }
                });
            }
        });
        // 60 samples, 64 slots, and no answers.
        let end = Instant::now() + Duration::from_secs(5);
        while b.dispatcher.shared.waiting() > 0 {
            assert!(Instant::now() < end, "{:?}", b.dispatcher.counts());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
