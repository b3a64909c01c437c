//! Warm-up samples cross every connection, are counted apart, and fail with the connection's name.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use super::{super::warm_up::Silence, rig::*, *};
use crate::{
    control::block_on,
    request::{OPTIONS_BYTES, RequestOptions},
    serve::{Arrival, Service},
};

fn warm_up(b: &Bench, sizes: u64, budget: Duration) -> Result<WarmUpReport, WarmUpError> {
    block_on(b.dispatcher.warm_up(&WarmUpCfgs {
        samples: (0..sizes).map(|i| b.sample(i)).collect(),
        budget,
        deadline: Duration::from_millis(500),
        again: false,
    }))
}

#[test]
fn a_warm_up_goes_over_every_connection_and_counts_apart() {
    let health = Policy::HealthBestFit;
    for over in [Over::Memory, Over::Tcp] {
        for b in [
            Bench::digests(RigCfgs::new(3, 8).staged(true)),
            Bench::digests(RigCfgs::new(3, 8).policy(health)),
        ] {
            b.connect_all(over);
            let r = warm_up(&b, 4, Duration::from_secs(60)).expect("warm");
            assert_eq!((r.connections.len(), r.sizes, r.at_once), (3, (4, 4), 8));
            assert_eq!(b.dispatcher.warm_up_samples(), r.samples);
            assert!(
                r.connections
                    .iter()
                    .all(|l| l.is_some_and(|l| l.warm_ns.is_some()))
            );
            // One cold, three other sizes, five warm; 2, 4 and 8 at once.
            assert_eq!(r.samples, 3 * (1 + 3 + 5 + 14));
            assert_eq!(b.dispatcher.counts().posted, 0);
            b.issue(0..50);
            b.drain();
            b.dispatcher.stop();
            // No completer saw a warm-up sample.
            b.check(50);
            let counts = b.dispatcher.counts();
            assert_eq!(
                (counts.issued, counts.completed, counts.posted),
                (50, 50, 50)
            );
            let connections = b.dispatcher.connection_records();
            let sum = |f: fn(&ConnectionRecord) -> u64| connections.iter().map(f).sum::<u64>();
            assert_eq!((sum(|l| l.posted), sum(|l| l.samples)), (50, 50));
            assert_eq!(
                connections.iter().map(|l| l.warmed).collect::<Vec<_>>(),
                [23; 3]
            );
            assert_eq!(sum(|l| l.tx.writes), 50 + r.samples);
            assert!(b.dispatcher.staged().0 <= 50);
        }
    }
}

#[test]
fn a_budget_that_is_gone_still_sends_one_over_every_connection() {
    let b = Bench::of(4, 8);
    b.connect_all(Over::Memory);
    let r = warm_up(&b, 3, Duration::ZERO).expect("warm");
    assert_eq!((r.samples, r.sizes, r.at_once), (4, (1, 3), 1));
    assert!(
        r.connections
            .iter()
            .all(|l| l.is_some_and(|l| l.warm_ns.is_none()))
    );
}

#[test]
fn a_warm_up_fails_by_the_connection_that_does_not_answer_is_lost_or_down() {
    let minute = Duration::from_secs(60);
    // No sample is answered.
    let b = Bench::new(RigCfgs::new(2, 8), Arc::new(Hoard::default()));
    b.connect_all(Over::Tcp);
    let failed = warm_up(&b, 1, minute).expect_err("no answer");
    assert!(
        matches!(failed, WarmUpError::Silent { connection: 0, .. }),
        "{failed:?}"
    );
    // The second is lost while the first owes an answer.
    let b = Arc::new(Bench::new(RigCfgs::new(2, 8), Arc::new(Hoard::default())));
    b.connect(0, 1, Over::Memory);
    let fault = b.connect(1, 1, Over::Memory).expect("memory");
    b.wait_up(2);
    let own = b.clone();
    let warm = std::thread::spawn(move || warm_up(&own, 1, minute));
    eventually("never sent", || {
        b.dispatcher.shared.connections[0].tracker.in_flight() != 0
    });
    fault.cut();
    let failed = warm.join().expect("returns").expect_err("lost");
    assert!(
        matches!(failed, WarmUpError::Lost { connection: 1, .. }),
        "{failed:?}"
    );
    b.wait_events(1);
    b.dispatcher.give_up(0, 1, Broken::Closed);
    b.wait_events(2);
    b.connect(0, 2, Over::Memory);
    b.wait_up(1);
    // The second connection stays down.
    let failed = warm_up(&b, 1, Duration::ZERO).expect_err("down");
    assert_eq!(failed, WarmUpError::Down { connection: 1 });
    // The first samples were lost with their connections; the last one is not answered.
    assert_eq!(b.dispatcher.warm_up_samples(), 1);
    assert_eq!(b.dispatcher.outstanding(), 0);
    assert_eq!(b.dispatcher.counts().again, 0);
}

#[test]
fn a_second_warm_up_leaves_out_connections_that_are_down() {
    let b = Bench::digests(RigCfgs::new(3, 8).staged(true));
    let mut faults = b.connect_all(Over::Memory);
    let first = warm_up(&b, 2, Duration::from_secs(60)).expect("warm");
    b.issue(0..40);
    b.drain();
    faults[1].take().expect("memory").cut();
    b.wait_events(1);
    let again = block_on(b.dispatcher.warm_up(&WarmUpCfgs {
        samples: (0..2).map(|i| b.sample(i)).collect(),
        budget: Duration::from_secs(60),
        deadline: Duration::from_millis(500),
        again: true,
    }));
    let again = again.expect("those that are up are warm");
    assert_eq!(
        (again.samples, again.sizes),
        (first.samples / 3 * 2, (2, 2))
    );
    b.check(40);
    b.dispatcher.stop();
    let connections = b.dispatcher.connection_records();
    let each = first.samples / 3;
    let warmed: Vec<_> = connections.iter().map(|l| l.warmed).collect();
    assert_eq!(warmed, [2 * each, each, 2 * each]);
    let sum = |f: fn(&ConnectionRecord) -> u64| connections.iter().map(f).sum::<u64>();
    assert_eq!((sum(|l| l.posted), b.dispatcher.staged().0), (40, 40));
}

/// Answers with a digest; refuses samples without a limit of two tokens.
struct Limited;

const LIMIT: RequestOptions = RequestOptions {
    token_limit: NonZeroU32::new(2),
};

impl Service for Limited {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        for a in arrivals.extract_if(.., |a| a.options() != Ok(LIMIT)) {
            a.refuse(&"it has no limit");
        }
        Digest.arrived(arrivals);
    }
}

#[test]
fn options_reach_the_engine_over_each_fabric_staged_or_not() {
    for (over, staged) in [Over::Memory, Over::Tcp].into_iter().zip([true, false]) {
        let b = Bench::new(RigCfgs::new(2, 8).staged(staged), Arc::new(Limited));
        b.connect_all(over);
        let sample = Sample {
            has_options: true,
            len: 100,
            ..b.sample(1)
        };
        // SAFETY: nothing reads the source before the samples are issued.
        unsafe { b.source.store(sample.offset, &LIMIT.encode()) }.expect("inside");
        let warm = block_on(b.dispatcher.warm_up(&WarmUpCfgs {
            samples: vec![sample],
            budget: Duration::from_millis(50),
            deadline: Duration::from_secs(10),
            again: false,
        }));
        assert!(warm.is_ok(), "{warm:?}");
        b.dispatcher.issue(&[sample]);
        b.drain();
        // SAFETY: nothing writes to the source any more.
        let payload = unsafe { b.source.bytes(sample.offset + OPTIONS_BYTES, 92) };
        let digest = xxh3_64(payload.expect("inside"));
        let right = Call::Whole(1, vec![digest as u32, (digest >> 32) as u32], true);
        assert_eq!(b.book.lock().calls, [right]);
    }
}

#[test]
fn any_sign_of_life_extends_the_deadline_of_a_warm_up() {
    let (mut silence, began) = (Silence::default(), Instant::now());
    let mut look = |ms, signs| {
        let now = began + Duration::from_millis(ms);
        silence.look(now, signs).as_millis()
    };
    assert_eq!(look(1_000, 0), 0, "the first look");
    assert_eq!(look(1_700, 0), 700);
    assert_eq!(
        look(2_900, 1),
        0,
        "an answer, a part or a heartbeat with progress"
    );
    assert_eq!(look(9_900, 1), 7_000);
    assert_eq!(look(9_901, 2), 0);
}
