//! Number of slots in use with `slots: auto`.

use std::{thread, time::Duration};

use super::{rig::*, *};
use crate::serve::Service;

const SLOTS: usize = 4096;

/// Slots of 4 KiB, as in the rig, that fit 2 MiB.
const LEAST: u64 = 512;

/// A bench with large samples, whose connections are not lost however slow the machine.
fn patient(connections: usize, service: Arc<dyn Service>) -> Bench {
    let cfgs = RigCfgs::new(connections, SLOTS).up_to(0);
    Bench::new(cfgs.wait(Wait::patient()), service)
}

/// A bench whose engine answers no sample, with more samples than slots.
fn stuck(connections: usize) -> Bench {
    let b = patient(connections, Arc::new(Hoard::default()));
    b.connect_all(Over::Memory);
    b.dispatcher.limit_slots(&vec![true; connections]);
    b
}

fn posts(b: &Bench, n: u64) {
    b.wait_posted(n);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(b.dispatcher.counts().posted, n);
}

fn allowed(b: &Bench) -> Vec<u64> {
    let records = b.dispatcher.connection_records();
    records.iter().map(|c| c.allowed).collect()
}

#[test]
fn an_engine_has_some_batches_and_one_that_does_not_say_all_slots() {
    let b = stuck(1);
    b.dispatcher.engine_works_on(0, 1);
    b.issue(0..5000);
    posts(&b, LEAST);
    // Three times the engine's number.
    b.dispatcher.engine_works_on(0, 300);
    posts(&b, 900);
    assert_eq!(allowed(&b), [900]);
    b.dispatcher.engine_works_on(0, 0);
    posts(&b, SLOTS as u64);
    b.dispatcher.abort("the test is over");
}

#[test]
fn a_lost_connections_slots_go_to_the_others() {
    let b = stuck(2);
    b.dispatcher.engine_works_on(0, 400);
    b.issue(0..5000);
    posts(&b, 1200);
    assert_eq!(allowed(&b), [600, 600]);
    b.dispatcher.give_up(0, 1, Broken::Closed);
    b.wait_events(1);
    eventually_or(|| format!("{:?}", allowed(&b)), || allowed(&b)[1] == 1200);
    b.dispatcher.abort("the test is over");
}

#[test]
fn slots_set_by_hand_are_all_in_use() {
    let b = patient(2, Arc::new(Hoard::default()));
    b.connect_all(Over::Memory);
    b.dispatcher.limit_slots(&[false, true]);
    b.dispatcher.engine_works_on(0, 1);
    assert_eq!(allowed(&b), [SLOTS as u64, LEAST]);
    b.dispatcher.abort("the test is over");
}
