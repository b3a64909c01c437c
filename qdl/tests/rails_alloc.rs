//! Choosing a rail causes no allocation. A separate program, because it counts allocations of the
//! whole process.

use std::hint::black_box;

use fabric::testkit::counting::{Counting, of_thread as asked};
use qdl::{
    config::HealthConfig,
    rails::{ConnectionRail, Load, MAX_RAILS, PeerCfgs, RailArbiter, RailId, RailPolicy, Score},
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Two peers with this many rails each, and a connection over each rail to each of eight targets.
fn arbiter(policy: RailPolicy, rails: usize) -> RailArbiter {
    let all: Vec<_> = (0..rails).map(|r| RailId(r as u8)).collect();
    let peer = PeerCfgs {
        policy,
        health: HealthConfig::default(),
        rails,
        targets: vec![all; 8],
    };
    let connection = |i: usize| ConnectionRail {
        peer: i / (8 * rails),
        rail: RailId((i / 8 % rails) as u8),
        target: i % 8,
        nic: i / 8 % rails,
    };
    let connections = (0..16 * rails).map(connection).collect();
    RailArbiter::new(&[peer.clone(), peer], connections).expect("good")
}

#[test]
fn choosing_a_connection_allocates_nothing() {
    let before = asked();
    drop(black_box(vec![0u8; 100]));
    assert!(asked() > before, "the counter counts");

    let spray = RailPolicy::HealthSpray {
        delta: Score::from_ratio(1, 4),
        above_only: false,
    };
    for rails in [1, 8, MAX_RAILS] {
        for policy in [RailPolicy::Best, RailPolicy::HealthBestFit, spray] {
            let arbiter = arbiter(policy, rails);
            let before = asked();
            let mut changes = 0;
            for connection in 0..16 * rails {
                arbiter.connection_up(0, connection, &mut |_| changes += 1);
            }
            for i in 0..6000u64 {
                let (now, len) = (i * 100_000, 64 << (i % 12));
                let load = |connection: usize| Load {
                    up: true,
                    in_flight: connection % 3,
                    slots: 8,
                };
                let connection = arbiter.pick(now, len, load).expect("room");
                let slow = if (connection / 8).is_multiple_of(rails) {
                    20
                } else {
                    1
                };
                arbiter.complete(connection, len, 10_000 * slow);
                arbiter.tick(now, &mut |_, _| changes += 1);
                if i % 1500 == 1499 {
                    // All connections of a rail: the rail is lost, and back.
                    let rail = connection / 8 * 8;
                    for c in rail..rail + 8 {
                        arbiter.connection_lost(now, c, None, false, &mut |_| changes += 1);
                    }
                    for c in rail..rail + 8 {
                        arbiter.connection_up(now, c, &mut |_| changes += 1);
                    }
                }
            }
            assert_eq!(asked(), before, "{policy:?}, {rails} rails");
            assert!(changes >= 2 * rails, "something happened");
        }
    }
}
