//! Samples that come closer together than posting them takes are left to NIC threads, and none of
//! them is forgotten: not by a thread that sleeps, that has no core, or whose connection goes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{everything::rung_though_nobody_comes_by, losses::cut_and_make_again, rig::*, *};

/// Samples issued one by one at one moment: each is in the company of those before it, however busy
/// this machine is.
struct Company<'a>(&'a Bench, u64);

impl Company<'_> {
    fn issue(&self, ids: std::ops::Range<u64>) {
        for id in ids {
            let issued_ns = self.1;
            self.0.dispatcher.issue(&[Sample {
                issued_ns,
                ..self.0.sample(id)
            }]);
        }
    }
}

fn drained(b: &Bench) {
    let drained = b.dispatcher.drain(Duration::from_secs(30));
    assert!(drained, "{:?}", b.dispatcher.counts());
}

fn in_company(over: &Over) {
    let b = Bench::new(4, 16, Arc::new(Digest), false, BY_COST);
    (0..4).for_each(|connection| {
        b.connect(connection, 1, over);
    });
    b.wait_up(4);
    let n = 20_000;
    Company(&b, now_ns()).issue(0..n);
    drained(&b);
    b.check(n);
    let c = b.dispatcher.counts();
    assert!(c.handed_over + c.backlogged > n / 2, "{c:?}");
}

#[test]
fn samples_in_company_are_left_to_nic_threads_over_tcp() {
    in_company(&Over::Tcp);
}

#[test]
fn samples_in_company_are_left_to_nic_threads_over_memory() {
    in_company(&Over::Memory);
}

#[test]
fn a_sample_that_is_alone_is_left_to_nobody() {
    let b = Bench::new(2, 16, Arc::new(Digest), false, BY_COST);
    (0..2).for_each(|connection| {
        b.connect(connection, 1, &Over::Memory);
    });
    b.wait_up(2);
    let (n, company) = (500, Company(&b, now_ns()));
    for id in 0..n {
        company.issue(id..id + 1);
        let end = Instant::now() + Duration::from_secs(10);
        while b.dispatcher.outstanding() > 0 {
            assert!(Instant::now() < end, "{:?}", b.dispatcher.counts());
            std::hint::spin_loop();
        }
    }
    b.check(n);
    // But for those that met the NIC thread at the end of its turn.
    let c = b.dispatcher.counts();
    assert!(c.handed_over < n / 2, "{c:?}");
}

#[test]
fn what_is_left_to_a_thread_that_sleeps_is_posted() {
    rung_though_nobody_comes_by(BY_COST);
}

#[test]
fn what_is_left_to_a_connection_that_is_lost_goes_by_another() {
    cut_and_make_again(&Bench::new(3, 8, Arc::new(Digest), false, BY_COST));
}

#[test]
fn what_is_left_to_a_thread_that_does_not_come_by_is_posted_by_who_issues() {
    let b = Bench::new(3, 1024, Arc::new(Digest), false, BY_COST);
    // Both are of the first NIC thread, which completes, or waits for the book.
    for connection in [0, 2] {
        b.connect(connection, 1, &Over::Memory);
    }
    b.wait_up(2);
    let book = b.book.answers.lock().expect("alive");
    let company = Company(&b, now_ns());
    let mut id = 0;
    while b.dispatcher.counts().posted < 200 && id < 1_500 {
        company.issue(id..id + 20);
        // Time goes by, now and then.
        b.dispatcher.issue(&[b.sample(id + 20)]);
        id += 21;
        std::thread::sleep(Duration::from_millis(1));
    }
    let c = b.dispatcher.counts();
    drop(book);
    assert!(c.posted >= 200 && c.handed_over > 0, "{c:?}");
    drained(&b);
    b.check(id);
}
