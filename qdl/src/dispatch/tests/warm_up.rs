//! Warm-up samples cross every connection, are counted apart, and fail with the connection's name.

use std::{num::NonZeroU32, time::Duration};

use tokio::time::Instant;

use super::{super::warm_up::Silence, front::*, rig::*, *};
use crate::{
    control::block_on,
    request::{OPTIONS_BYTES, RequestOptions},
};
use fabric::Imm;
use record::WarmUpRecord;

const MINUTE: Duration = Duration::from_secs(60);

fn cfgs(front: &Front, sizes: u64, budget: Duration) -> WarmUpCfgs {
    WarmUpCfgs {
        samples: (0..sizes).map(|i| front.sample(i)).collect(),
        budget,
        deadline: Duration::from_millis(500),
        is_repeated: false,
    }
}

/// Warms up connections whose far ends answer.
fn warm_up(front: &Front, far: &mut [Far], cfgs: &WarmUpCfgs) -> WarmUpRecord {
    let play = || far.iter_mut().for_each(Far::answer_all);
    let warm = front.while_calling(|d| block_on(d.warm_up(cfgs)), play);
    warm.expect("warm")
}

/// Issues so many samples, which are all answered once.
fn run(front: &Front, far: &mut [Far], n: u64) {
    front.issue(0..n);
    while front.dispatcher.outstanding() > 0 {
        front.turn_once();
        far.iter_mut().for_each(Far::answer_all);
    }
    let mut calls = front.turn().calls;
    calls.sort_by_key(|call| match call {
        Call::Whole(id, ..) => *id,
        _ => u64::MAX,
    });
    let right = |id| Call::Whole(id, vec![1, 2], true);
    assert_eq!(calls, (0..n).map(right).collect::<Vec<_>>());
}

fn sum(front: &Front, of: fn(&ConnectionRecord) -> u64) -> u64 {
    let connections = front.dispatcher.connection_records();
    connections.iter().map(of).sum()
}

fn warmed(front: &Front) -> Vec<u64> {
    let connections = front.dispatcher.connection_records();
    connections.iter().map(|c| c.warmed).collect()
}

#[test]
fn a_warm_up_goes_over_every_connection_and_counts_apart() {
    for rig in [
        RigCfgs::new(3, 8).staged(true),
        RigCfgs::new(3, 8).policy(Policy::HealthBestFit),
    ] {
        let front = Front::new(rig);
        let mut far = front.connect_all();
        let r = warm_up(&front, &mut far, &cfgs(&front, 4, MINUTE));
        assert_eq!(
            (r.connections, r.sizes, r.of_sizes, r.at_once),
            (3, 4, 4, 8)
        );
        assert_eq!(front.dispatcher.warm_up_samples(), r.samples);
        let all = front.dispatcher.connection_records();
        assert!(
            all.iter()
                .all(|c| c.cold_us.is_some() && c.warm_us.is_some())
        );
        // One cold, three other sizes, five warm; 2, 4 and 8 at once.
        assert_eq!(r.samples, 3 * (1 + 3 + 5 + 14));
        assert_eq!(front.dispatcher.counts().posted, 0);
        // No completer sees a warm-up sample.
        run(&front, &mut far, 50);
        let c = front.dispatcher.counts();
        assert_eq!((c.issued, c.answered, c.posted), (50, 50, 50));
        assert_eq!(warmed(&front), [23; 3]);
        assert_eq!(sum(&front, |c| c.posted), 50);
        assert_eq!(sum(&front, |c| c.tx.writes), 50 + r.samples);
        assert!(front.dispatcher.staged().0 <= 50);
    }
}

#[test]
fn a_budget_that_is_gone_still_sends_one_over_every_connection() {
    let front = Front::new(RigCfgs::new(4, 8));
    let mut far = front.connect_all();
    let r = warm_up(&front, &mut far, &cfgs(&front, 3, Duration::ZERO));
    assert_eq!((r.samples, r.sizes, r.of_sizes, r.at_once), (4, 1, 3, 1));
    let all = front.dispatcher.connection_records();
    assert!(
        all.iter()
            .all(|c| c.cold_us.is_some() && c.warm_us.is_none())
    );
}

#[test]
fn a_warm_up_fails_by_the_connection_that_does_not_answer_is_lost_or_down() {
    // No sample is answered.
    let front = Front::new(RigCfgs::new(2, 8));
    let _far = front.connect_all();
    let minute = cfgs(&front, 1, MINUTE);
    let failed = front.while_calling(|d| block_on(d.warm_up(&minute)), || ());
    let silent = matches!(failed, Err(WarmUpError::Silent { connection: 0, .. }));
    assert!(silent, "{failed:?}");
    // The second is lost while the first owes an answer.
    let front = Front::new(RigCfgs::new(2, 8));
    let mut far = front.connect_all();
    let play = || {
        if !far[0].requests().is_empty() {
            far[1].cut();
        }
    };
    let failed = front.while_calling(|d| block_on(d.warm_up(&minute)), play);
    let lost = matches!(failed, Err(WarmUpError::Lost { connection: 1, .. }));
    assert!(lost, "{failed:?}");
    front.dispatcher.give_up(0, 1, Broken::Closed);
    assert_eq!(front.turn().events.len(), 2);
    let _far = front.connect(0, 2);
    // The second connection stays down.
    let gone = cfgs(&front, 1, Duration::ZERO);
    let failed = front.while_calling(|d| block_on(d.warm_up(&gone)), || ());
    assert_eq!(failed, Err(WarmUpError::Down { connection: 1 }));
    // The first samples were lost with their connections; the last one is not answered.
    assert_eq!(front.dispatcher.warm_up_samples(), 1);
    assert_eq!(front.dispatcher.outstanding(), 0);
    assert_eq!(front.dispatcher.counts().redispatched, 0);
}

#[test]
fn a_second_warm_up_leaves_out_connections_that_are_down() {
    let front = Front::new(RigCfgs::new(3, 8).staged(true));
    let mut far = front.connect_all();
    let first = warm_up(&front, &mut far, &cfgs(&front, 2, MINUTE));
    run(&front, &mut far, 40);
    far.remove(1).cut();
    assert_eq!(front.turn().events.len(), 1);
    let again = WarmUpCfgs {
        is_repeated: true,
        ..cfgs(&front, 2, MINUTE)
    };
    let again = warm_up(&front, &mut far, &again);
    let each = first.samples / 3;
    assert_eq!(
        (again.samples, again.sizes, again.connections),
        (2 * each, 2, 2)
    );
    assert_eq!(warmed(&front), [2 * each, each, 2 * each]);
    let posted = sum(&front, |c| c.posted);
    assert_eq!((posted, front.dispatcher.staged().0), (40, 40));
}

#[test]
fn options_go_in_front_of_a_sample_staged_or_not() {
    let limit = RequestOptions {
        token_limit: NonZeroU32::new(2),
        ..RequestOptions::default()
    };
    for staged in [true, false] {
        let front = Front::new(RigCfgs::new(1, 8).staged(staged));
        let mut far = front.connect(0, 1);
        let sample = Sample {
            has_options: true,
            len: 100,
            ..front.sample(1)
        };
        // SAFETY: nothing reads the source before the samples are issued.
        unsafe {
            front
                .source
                .store(sample.offset, &RequestOptions::limit_block(2))
        }
        .expect("inside");
        // SAFETY: nothing writes to the source any more.
        let sent = unsafe { front.source.bytes(sample.offset, 100) }.expect("inside");
        let mut came = 0;
        let mut look = |far: &mut Far| {
            for imm in far.requests() {
                let bytes = far.request_bytes(imm, 100);
                assert!(imm.has_options() && bytes == sent, "{imm:?}");
                assert_eq!(
                    RequestOptions::decode(&bytes[..OPTIONS_BYTES]),
                    Ok(limit.clone())
                );
                far.whole(Imm::new(imm.slot(), imm.use_count()), &[1, 2]);
                came += 1;
            }
        };
        let warm = WarmUpCfgs {
            samples: vec![sample],
            ..cfgs(&front, 1, Duration::ZERO)
        };
        let warm = front.while_calling(|d| block_on(d.warm_up(&warm)), || look(&mut far));
        assert!(warm.is_ok(), "{warm:?}");
        front.dispatcher.issue(&[sample]);
        front.turn();
        look(&mut far);
        assert_eq!((came, front.turn().calls.len()), (2, 1));
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
