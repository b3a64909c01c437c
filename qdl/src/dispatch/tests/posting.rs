//! The rules of `docs/architecture.md`, *Which thread posts*, and the counts of samples that wait.

use super::{front::*, rig::*, *};
use crate::testkit::lingers::lingers;

/// Largest burst that the issuing thread posts, by default.
const DEFAULT: u64 = 16 << 10;

/// A dispatcher whose connections are up, and their far ends, which answer nothing.
fn up(cfgs: RigCfgs) -> (Front, Vec<Far>) {
    let connections = cfgs.connections;
    let front = Front::new(RigCfgs { nics: 1, ..cfgs });
    let all = (0..connections).map(|c| front.connect(c, 1)).collect();
    (front, all)
}

/// Issues a sample of 64 bytes at a time, which the dispatcher compares with the last one.
fn issue_at(front: &Front, id: u64, issued_ns: u64) {
    front.dispatcher.issue(&[Sample {
        issued_ns,
        len: 64,
        ..front.sample(id)
    }]);
}

#[test]
fn the_issuing_thread_posts_on_an_idle_connection_and_for_a_thread_without_a_core() {
    let (front, _far) = up(RigCfgs::new(1, 1024).up_to(DEFAULT));
    front.rouse();
    issue_at(&front, 0, 1_000_000);
    assert_eq!(front.posts(), (1, 0, 0, 0), "the connection is idle");
    issue_at(&front, 1, 2_000_000);
    assert_eq!(front.posts(), (1, 1, 0, 0), "the NIC thread is awake");
    // It does not turn, and 128 samples wait in the ring.
    (2..130).for_each(|id| issue_at(&front, id, (id + 1) * 1_000_000));
    assert_eq!(front.posts(), (1, 129, 0, 0));
    issue_at(&front, 130, 131_000_000);
    assert_eq!(
        front.posts(),
        (131, 129, 0, 0),
        "the NIC thread has no core"
    );
}

#[test]
fn the_issuing_thread_posts_four_bursts_for_a_sleeper_and_wakes_it_with_the_fifth() {
    let (front, _far) = up(RigCfgs::new(1, 1024).up_to(DEFAULT));
    (0..5).for_each(|id| issue_at(&front, id, 1_000_000 + id));
    assert_eq!(front.posts(), (4, 1, 0, 0));
    assert_eq!(front.dispatcher.waits().woken, 1);
    front.turn();
    assert_eq!(front.posts(), (5, 1, 0, 0));
}

#[test]
fn nic_threads_post_samples_that_are_too_large_for_the_issuing_thread() {
    for policy in [Policy::LeastOutstanding, Policy::Best] {
        let (front, _far) = up(RigCfgs::new(2, 16).up_to(0).policy(policy));
        (0..10).for_each(|id| front.issue(id..id + 1));
        assert_eq!(front.posts(), (0, 10, 0, 0), "{policy:?}");
        front.turn();
        assert_eq!(front.posts(), (10, 10, 0, 0), "{policy:?}");
    }
}

#[test]
fn samples_close_together_go_to_one_connection_and_bursts_to_the_least_loaded() {
    let (front, _far) = up(RigCfgs::new(2, 1024).up_to(DEFAULT));
    // 64 at one moment, 64 later, and 64 in one call.
    for (ids, issued_ns) in [(0..64, 1_000_000), (64..128, 2_000_000)] {
        ids.for_each(|id| issue_at(&front, id, issued_ns + id));
    }
    let len = 64;
    let one_call: Vec<_> = (128..192)
        .map(|id| Sample {
            len,
            ..front.sample(id)
        })
        .collect();
    front.dispatcher.issue(&one_call);
    front.turn();
    let mut posted = front.posted();
    posted.sort_unstable();
    assert_eq!(posted, [64, 128]);
}

#[test]
fn few_samples_in_flight_are_spread_over_the_accelerators() {
    let (front, _far) = up(RigCfgs {
        peers: true,
        ..RigCfgs::new(3, 1024).up_to(DEFAULT)
    });
    (0..30).for_each(|id| issue_at(&front, id, (id + 1) * 1_000_000));
    front.turn();
    assert_eq!(front.posted(), [10, 10, 10]);
}

#[test]
fn samples_that_have_a_slot_do_not_count_as_waiting() {
    let (front, _far) = up(RigCfgs::new(1, 8));
    front.issue(0..5);
    assert_eq!(front.posts(), (5, 0, 0, 0));
    front.issue(5..20);
    assert_eq!(front.posts(), (8, 0, 12, 12), "three had one");
    front.issue(20..21);
    assert_eq!(front.posts(), (8, 0, 13, 13));
}

#[test]
fn large_samples_are_handed_over_as_long_as_slots_are_free() {
    let (front, _far) = up(RigCfgs::new(1, 8).up_to(0));
    front.issue(0..5);
    front.turn();
    assert_eq!(front.posts(), (5, 5, 0, 0));
    // All at once: for three there is a slot, the others wait for one.
    front.issue(5..25);
    front.turn();
    assert_eq!(front.posts(), (8, 8, 17, 17));
    front.issue(25..26);
    assert_eq!(front.posts(), (8, 8, 18, 18));
}

#[test]
fn samples_that_go_again_do_not_count_as_waiting() {
    let (front, _far) = up(RigCfgs::new(1, 8));
    front.issue(0..6);
    front.dispatcher.give_up(0, 1, Broken::Closed);
    front.turn();
    assert_eq!(front.dispatcher.counts().redispatched, 6);
    assert_eq!(front.posts(), (6, 0, 0, 0));
    // Without a connection there is no slot.
    front.issue(6..8);
    assert_eq!(front.posts(), (6, 0, 2, 8));
}

#[test]
fn a_goodbye_holds_up_no_other_connection_of_its_nic() {
    let front = Front::new(RigCfgs {
        nics: 1,
        ..RigCfgs::new(2, 8)
    });
    let (_far, link) = front.far(0);
    let (link, is_over) = lingers(link);
    front.dispatcher.attach(0, 1, link);
    let mut far = front.connect(1, 1);
    front.dispatcher.give_up(0, 1, Broken::Closed);
    // The goodbye keeps the thread turning.
    front.turn_once();
    front.issue(0..1);
    front.turn_once();
    let imm = far.request();
    far.whole(imm, &[1, 2]);
    front.turn_once();
    let reports = std::mem::take(&mut *front.book.lock());
    assert_eq!(reports.calls, [Call::Whole(0, vec![1, 2], true)]);
    assert!(
        reports.events.is_empty(),
        "lost before its local side was destroyed"
    );
    is_over.store(true, Ordering::SeqCst);
    assert_eq!(front.turn().events.len(), 1);
}

#[test]
fn a_nics_connections_are_shared_out_and_go_with_its_link() {
    // Two shares of the first NIC on two threads, and the second NIC on one of them.
    let front = Front::new(RigCfgs {
        crew: Some(CrewPlan {
            nic_of: vec![0, 0, 1],
            thread_of: vec![0, 1, 1],
        }),
        ..RigCfgs::new(4, 16)
    });
    let _far = [0, 1, 2, 3].map(|c| front.connect(c, 1));
    let connections = &front.dispatcher.shared.connections;
    let shares: Vec<_> = connections.iter().map(|c| c.share).collect();
    assert_eq!(shares, [0, 2, 1, 2]);
    assert_eq!(front.dispatcher.placed().len(), 2, "one place a NIC");
    let cause = Broken::GivenUp("its link is down".to_owned());
    front.dispatcher.give_up_nic(0, &cause);
    front.turn();
    let up = connections.iter().filter(|c| c.up.load(Ordering::SeqCst));
    let left: Vec<_> = up.map(|c| c.index).collect();
    assert_eq!(left, [1, 3], "those of the other NIC");
}
