//! Posting threads: no sample is forgotten by a NIC thread asleep, off core or cut off.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{rig::*, *};

fn one_by_one(b: &Bench, ids: std::ops::Range<u64>) {
    ids.for_each(|id| b.dispatcher.issue(&[b.sample(id)]));
}

#[test]
fn samples_on_busy_connections_are_left_to_nic_threads() {
    for over in [Over::Tcp, Over::Memory] {
        let b = Bench::digests(RigCfgs::new(4, 16).up_to(DEFAULT));
        b.connect_all(over);
        one_by_one(&b, 0..20_000);
        b.drain();
        b.check(20_000);
        let c = b.dispatcher.counts();
        assert!(c.handed_over + c.backlogged > 0, "{over:?}: {c:?}");
    }
}

#[test]
fn the_issuing_thread_posts_a_sample_on_an_idle_connection() {
    let b = Bench::digests(RigCfgs::new(2, 16).up_to(DEFAULT));
    b.connect_all(Over::Memory);
    let n = 500;
    for id in 0..n {
        one_by_one(&b, id..id + 1);
        eventually_or(
            || format!("{:?}", b.dispatcher.counts()),
            || b.dispatcher.outstanding() == 0,
        );
    }
    b.check(n);
    // A slot is freed shortly after its sample completes, so the next sample may find it taken.
    let c = b.dispatcher.counts();
    assert!(c.handed_over < n / 2, "{c:?}");
}

#[test]
fn nic_threads_post_all_samples_where_the_issuing_thread_may_post_none() {
    let b = Bench::digests(RigCfgs::new(2, 16).up_to(0));
    b.connect_all(Over::Memory);
    one_by_one(&b, 0..500);
    b.drain();
    b.check(500);
    let c = b.dispatcher.counts();
    assert_eq!(c.handed_over + c.backlogged, 500, "{c:?}");
}

#[test]
fn samples_close_together_go_to_one_connection_and_bursts_to_the_least_loaded() {
    let kept = Arc::new(Hoard::default());
    let b = Bench::new(RigCfgs::new(2, 1024).up_to(DEFAULT), kept);
    b.connect_all(Over::Memory);
    // 64 at one moment, 64 later, and 64 in one call.
    for (ids, issued_ns) in [(0..64, 1_000_000), (64..128, 2_000_000)] {
        for id in ids {
            let issued_ns = issued_ns + id;
            b.dispatcher.issue(&[Sample {
                issued_ns,
                len: 64,
                ..b.sample(id)
            }]);
        }
    }
    let one_call: Vec<_> = (128..192)
        .map(|id| Sample {
            len: 64,
            ..b.sample(id)
        })
        .collect();
    b.dispatcher.issue(&one_call);
    b.wait_posted(192);
    let records = b.dispatcher.connection_records();
    let mut posted: Vec<_> = records.iter().map(|c| c.posted).collect();
    posted.sort_unstable();
    assert_eq!(posted, [64, 128]);
    b.dispatcher.abort("the test is over");
}

#[test]
fn few_samples_in_flight_are_spread_over_the_accelerators() {
    let kept = Arc::new(Hoard::default());
    let mut cfgs = RigCfgs::new(3, 1024).up_to(DEFAULT);
    cfgs.peers = true;
    let b = Bench::new(cfgs, kept);
    b.connect_all(Over::Memory);
    for id in 0..30 {
        let issued_ns = (id + 1) * 1_000_000;
        b.dispatcher.issue(&[Sample {
            issued_ns,
            len: 64,
            ..b.sample(id)
        }]);
    }
    b.wait_posted(30);
    let records = b.dispatcher.connection_records();
    let posted: Vec<_> = records.iter().map(|c| c.posted).collect();
    assert_eq!(posted, [10, 10, 10]);
    b.dispatcher.abort("the test is over");
}

#[test]
fn the_issuing_thread_posts_for_a_nic_thread_that_has_no_core() {
    let b = Bench::digests(RigCfgs::new(3, 1024).up_to(DEFAULT));
    // Both are of the first NIC thread, which completes, or waits for the book.
    for connection in [0, 2] {
        b.connect(connection, 1, Over::Memory);
    }
    b.wait_up(2);
    let book = b.book.answers.lock().expect("alive");
    let mut id = 0;
    let end = Instant::now() + Duration::from_secs(20);
    while b.dispatcher.counts().posted < 200 && Instant::now() < end && id < 2_000 {
        one_by_one(&b, id..id + 20);
        id += 20;
        std::thread::sleep(Duration::from_millis(1));
    }
    let c = b.dispatcher.counts();
    drop(book);
    assert!(c.posted >= 200 && c.handed_over > 0, "{c:?}");
    b.drain();
    b.check(id);
}
