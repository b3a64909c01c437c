//! Choosing a rail causes no allocation. A separate program, because it counts allocations of the
//! whole process.

use std::hint::black_box;

use fabric::testkit::counting::{Counting, of_thread as asked};
use qdl::rails::{
    ConnectionRail, Fault, HealthCfgs, Load, MAX_RAILS, PeerCfgs, PeerRails, RailArbiter,
    RailArbiterCfgs, RailId, RailPolicy, Score, Want,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn cfgs(policy: RailPolicy, rails: usize) -> PeerCfgs {
    let all: Vec<_> = (0..rails).map(|r| RailId(r as u8)).collect();
    PeerCfgs {
        policy,
        health: HealthCfgs::default(),
        rails,
        targets: all.chunks(rails.div_ceil(8)).map(<[_]>::to_vec).collect(),
    }
}

fn policies() -> [RailPolicy; 3] {
    [
        RailPolicy::Best,
        RailPolicy::HealthBestFit,
        RailPolicy::HealthSpray {
            delta: Score::from_ratio(1, 4),
            above_only: false,
        },
    ]
}

#[test]
fn choosing_a_rail_allocates_nothing() {
    let before = asked();
    drop(black_box(vec![0u8; 100]));
    assert!(asked() > before, "the counter counts");

    for rails in [1, 8, MAX_RAILS] {
        for policy in policies() {
            let mut peer = PeerRails::new(&cfgs(policy, rails)).expect("good");
            let meters = peer.meters().clone();
            let before = asked();
            let mut changes = 0;
            for r in 0..rails {
                peer.restored(0, RailId(r as u8), &mut |_| changes += 1);
            }
            for i in 0..20_000u64 {
                let now = i * 100_000;
                let want = Want {
                    target: i as usize % 8,
                    len: 64 << (i % 12),
                };
                let rail = peer.pick(now, want, |_| true).expect("rails are up");
                let slow = if rail.0 == 0 { 20 } else { 1 };
                meters.completed(rail, want.len, 10_000 * slow);
                peer.tick(now, &mut |_| changes += 1);
                if i % 5000 == 4999 && rails > 1 {
                    peer.failed(now, rail, Fault::Path, &mut |_| changes += 1);
                    peer.restored(now, rail, &mut |_| changes += 1);
                }
            }
            assert_eq!(asked(), before, "{policy:?}, {rails} rails");
            assert!(changes >= rails, "something happened");
        }
    }
}

#[test]
fn choosing_a_connection_allocates_nothing() {
    let connection = |i: usize| ConnectionRail {
        peer: i / 64,
        rail: RailId((i % 64 / 8) as u8),
        target: i % 8,
        nic: i % 64 / 8,
    };
    let arbiter = RailArbiter::new(&RailArbiterCfgs {
        peers: vec![cfgs(policies()[1], 8); 2],
        connections: (0..128).map(connection).collect(),
    })
    .expect("good");
    for l in 0..128 {
        arbiter.connection_up(0, l, &mut |_| {});
    }
    let before = asked();
    for i in 0..20_000u64 {
        let load = |l: usize| Load {
            up: true,
            in_flight: l % 3,
            slots: 8,
        };
        let connection = arbiter.pick(i * 1000, 150_528, load).expect("room");
        arbiter.completed(connection, 150_528, 100_000);
        arbiter.tick(i * 1000, &mut |_, _| {});
    }
    assert_eq!(asked(), before);
}
