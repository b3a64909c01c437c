//! Tests of all rails to a peer together.

use proptest::prelude::*;

use super::{peer::PeerRails, *};

/// Unloaded network time of the tests' samples.
const BASE: u64 = 100_000;
const LEN: u32 = 10_000;

fn ids(n: usize) -> Vec<RailId> {
    (0..n).map(|i| RailId(i as u8)).collect()
}

fn cfgs(policy: Policy, rails: usize) -> PeerCfgs {
    PeerCfgs {
        policy,
        health: HealthConfig::default(),
        rails,
        targets: vec![ids(rails)],
    }
}

fn spray() -> Policy {
    Policy::HealthSpray {
        delta: Score::from_f32(0.25),
        above_only: false,
    }
}

fn policies() -> [Policy; 3] {
    [Policy::Best, Policy::HealthBestFit, spray()]
}

fn any_policy() -> impl Strategy<Value = Policy> {
    prop::sample::select(policies().to_vec())
}

/// Rails, a clock, and recorded changes.
struct RailsRig {
    rails: PeerRails,
    now: u64,
    changes: Vec<Change>,
    used: Vec<usize>,
}

impl RailsRig {
    fn new(cfgs: &PeerCfgs) -> Self {
        let mut b = RailsRig {
            rails: PeerRails::new(cfgs).expect("good"),
            now: 0,
            changes: Vec::new(),
            used: vec![0; cfgs.rails],
        };
        for r in ids(cfgs.rails) {
            b.rails.restored(0, r, &mut |_| {});
        }
        b
    }

    /// Runs samples one after the other, `gap` apart; `slow` gives the baselines that each takes.
    fn run(&mut self, samples: usize, gap: u64, slow: impl Fn(RailId) -> u64) {
        for _ in 0..samples {
            self.now += gap;
            let rail = self
                .rails
                .pick(self.now, 0, LEN, |_| true)
                .expect("rails are up");
            self.used[rail.index()] += 1;
            self.rails.meters()[rail.index()].complete(LEN, BASE * slow(rail));
            self.rails.tick(self.now, &mut |c| self.changes.push(c));
        }
    }

    /// Runs samples at full speed, with `hold` samples in flight all the time.
    fn run_holding(&mut self, samples: usize, gap: u64, hold: usize) {
        let mut queue = std::collections::VecDeque::new();
        for _ in 0..samples {
            self.now += gap;
            let rail = self.rails.pick(self.now, 0, LEN, |_| true).expect("up");
            self.used[rail.index()] += 1;
            queue.push_back(rail);
            if queue.len() > hold {
                let rail = queue.pop_front().expect("just pushed");
                self.rails.meters()[rail.index()].complete(LEN, BASE);
            }
            self.rails.tick(self.now, &mut |c| self.changes.push(c));
        }
        for rail in queue {
            self.rails.meters()[rail.index()].complete(LEN, BASE);
        }
    }

    fn state(&self, rail: RailId) -> RailState {
        self.rails.report().nth(rail.index()).expect("a rail").state
    }

    fn take_used(&mut self) -> Vec<usize> {
        let n = self.used.len();
        std::mem::replace(&mut self.used, vec![0; n])
    }
}

#[test]
fn a_congested_rail_gets_probes_alone_and_comes_back() {
    for policy in policies() {
        let slow = |r: RailId| if r.0 == 2 { 10 } else { 1 };
        let mut b = RailsRig::new(&cfgs(policy, 4));
        b.run(2000, MS, |_| 1);
        assert_eq!(b.changes, [], "{policy:?}");
        b.run(500, MS, slow);
        b.take_used();
        b.run(5000, MS, slow);
        let used = b.take_used();
        assert!(used[2] > 0 && used[2] * 100 <= 5000, "{policy:?}: {used:?}");
        let state = b.state(RailId(2));
        assert_eq!(state, RailState::Congested, "{policy:?}");
        b.run(3000, MS, |_| 1);
        let state = b.state(RailId(2));
        assert_eq!(state, RailState::InService, "{policy:?}");
        assert_eq!(b.changes.len(), 2, "{policy:?}: {:?}", b.changes);
        b.take_used();
        // With nothing in flight all rails are equal for `best`, which then keeps one.
        b.run_holding(4000, MS, 7);
        let used = b.take_used();
        assert!(used.iter().all(|u| *u > 900), "{policy:?}: {used:?}");
    }
}

#[test]
fn load_that_all_rails_feel_takes_none_out() {
    for policy in policies() {
        let mut b = RailsRig::new(&cfgs(policy, 8));
        b.run(1000, MS, |_| 1);
        b.run(3000, MS, |r| 20 + u64::from(r.0 % 3));
        assert!(b.changes.is_empty(), "{policy:?}: {:?}", b.changes);
    }
}

#[test]
fn at_most_half_the_rails_are_congested() {
    let mut c = cfgs(spray(), 4);
    // Congested rails stay congested, whatever their latency.
    (c.health.congested_hold_ms, c.health.congested_hold_max_ms) = (100_000, 100_000);
    let mut b = RailsRig::new(&c);
    let out = |b: &RailsRig| {
        let congested = |r: &RailId| b.state(*r) == RailState::Congested;
        ids(4).into_iter().filter(congested).collect::<Vec<_>>()
    };
    b.run(1000, MS, |_| 1);
    b.run(1000, MS, |r| if r.0 < 2 { 1 } else { 50 });
    assert_eq!(out(&b), [RailId(2), RailId(3)]);
    // The rails in service become slow, congested ones fast. Slow rails must still carry samples.
    b.run(5000, MS, |r| if r.0 < 2 { 50 } else { 1 });
    assert_eq!(out(&b), [RailId(2), RailId(3)]);
    assert!(
        b.rails
            .report()
            .all(|r| r.latency > c.health.in_above || r.rail.0 < 2)
    );
}

#[test]
fn a_rail_slow_from_the_beginning_is_found_out() {
    let mut b = RailsRig::new(&cfgs(Policy::HealthBestFit, 4));
    b.run(2000, MS, |r| if r.0 == 1 { 40 } else { 1 });
    assert_eq!(b.state(RailId(1)), RailState::Congested);
}

#[test]
fn a_burst_does_not_mob_the_best_rail() {
    for policy in policies() {
        let mut b = RailsRig::new(&cfgs(policy, 8));
        b.run(100, MS, |_| 1);
        let mut used = [0; 8];
        for _ in 0..800 {
            let rail = b.rails.pick(b.now, 0, LEN, |_| true).expect("up");
            used[rail.index()] += 1;
        }
        // Without completions, the assigned bytes alone must spread the samples.
        assert!(
            used.iter().all(|u| (95..=105).contains(u)),
            "{policy:?}: {used:?}"
        );
    }
}

#[test]
fn a_lost_rail_is_held_back_longer_each_time() {
    let mut b = RailsRig::new(&cfgs(spray(), 2));
    let lost = RailId(1);
    let mut held = Vec::new();
    for _ in 0..4 {
        b.run(10, MS, |_| 1);
        b.rails.failed(b.now, lost, Fault::Path, &mut |_| {});
        b.take_used();
        b.run(300, MS, |_| 1);
        assert_eq!(b.take_used()[1], 0, "not even probes while it is down");
        b.rails.restored(b.now, lost, &mut |_| {});
        assert_eq!(b.state(lost), RailState::Probation);
        let since = b.now;
        while b.state(lost) != RailState::InService {
            b.run(1, MS, |_| 1);
            assert!(b.now < since + 100_000 * MS, "never comes back");
        }
        held.push((b.now - since) / (1000 * MS));
    }
    assert_eq!(held, [1, 2, 4, 8]);
}

#[test]
fn with_nothing_better_a_doubtful_rail_is_used() {
    let mut b = RailsRig::new(&cfgs(Policy::HealthBestFit, 2));
    b.rails.failed(1, RailId(0), Fault::Path, &mut |_| {});
    b.rails.restored(2, RailId(0), &mut |_| {});
    b.rails.failed(3, RailId(1), Fault::Path, &mut |_| {});
    assert_eq!(b.rails.pick(4, 0, LEN, |_| true), Some(RailId(0)));
    b.rails.failed(5, RailId(0), Fault::Peer, &mut |_| {});
    assert_eq!(b.rails.pick(6, 0, LEN, |_| true), None);
}

#[test]
fn samples_keep_to_the_gpus_own_rails_until_they_are_worse_than_the_way_across() {
    for policy in [Policy::Best, Policy::HealthBestFit] {
        let mut c = cfgs(policy, 4);
        // Two GPUs with two NICs each.
        c.targets = vec![ids(2), vec![RailId(2), RailId(3)]];
        let mut b = RailsRig::new(&c);
        b.rails.set_far(Score::from_f32(0.5));
        for i in 0..4 {
            let rail = b.rails.pick(0, 1, LEN, |_| true).expect("up");
            assert!(rail.0 >= 2, "{policy:?}, sample {i}: {rail:?}");
        }
        // Both own rails hold two samples, and W is one sample: 1/3 is worse than 1/2 across.
        let rail = b.rails.pick(0, 1, LEN, |_| true).expect("up");
        assert!(rail.0 < 2, "{policy:?}: {rail:?}");
    }
}

#[test]
fn the_worse_opinion_of_a_rail_counts() {
    let mut b = RailsRig::new(&cfgs(Policy::Best, 2));
    b.rails.set_peers_score(RailId(1), Score::from_f32(0.1));
    b.rails.tick(0, &mut |_| {});
    for _ in 0..5 {
        assert_eq!(b.rails.pick(0, 0, LEN, |_| true), Some(RailId(0)));
    }
}

#[test]
fn no_rails_and_too_many_are_named() {
    for rails in [0, MAX_RAILS + 1] {
        let error = PeerRails::new(&cfgs(Policy::Best, rails)).expect_err("bad");
        assert!(error.to_string().starts_with(&format!("{rails} rails")));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With any rails up and full, a chosen rail is up and has room, and there is a choice if a
    /// rail in service has room. The assigned bytes add up.
    #[test]
    fn only_a_rail_with_room_is_chosen(
        policy in any_policy(), n in 1usize..20,
        steps in prop::collection::vec((0u8..20, 0u8..5, 0u64..40 * MS), 0..150),
    ) {
        let mut b = RailsRig::new(&cfgs(policy, n));
        let mut in_flight = vec![0usize; n];
        let room = 3;
        for (rail, what, passed) in steps {
            b.now += passed;
            let rail = RailId(rail % n as u8);
            match what {
                0 => b.rails.failed(b.now, rail, Fault::Path, &mut |_| {}),
                1 => b.rails.restored(b.now, rail, &mut |_| {}),
                2 => while in_flight[rail.index()] > 0 {
                    in_flight[rail.index()] -= 1;
                    b.rails.meters()[rail.index()].complete(LEN, BASE);
                },
                _ => {
                    let up = |b: &RailsRig, r: usize| !matches!(
                        b.state(RailId(r as u8)), RailState::Down(_));
                    let in_service = |b: &RailsRig, r: usize|
                        b.state(RailId(r as u8)) == RailState::InService;
                    match b.rails.pick(b.now, 0, LEN, |r| in_flight[r.index()] < room) {
                        Some(rail) => {
                            let i = rail.index();
                            prop_assert!(up(&b, i) && in_flight[i] < room);
                            in_flight[i] += 1;
                        }
                        None => {
                            let none = |r: usize| !in_service(&b, r) || in_flight[r] >= room;
                            prop_assert!((0..n).all(none));
                        }
                    }
                }
            }
            b.rails.tick(b.now, &mut |_| {});
            for (r, n) in b.rails.report().zip(&in_flight) {
                prop_assert_eq!(r.assigned_bytes, *n as u64 * u64::from(LEN));
            }
        }
    }

    /// Equal rails share samples equally within 5 %, including probes, at any number in flight.
    #[test]
    fn alike_rails_are_used_evenly(n in 2usize..17, hold in 1usize..40) {
        let mut b = RailsRig::new(&cfgs(spray(), n));
        b.run_holding(400 * n, MS / 8, hold);
        let used = b.take_used();
        prop_assert!(used.iter().all(|u| (380..=420).contains(u)), "{:?}", used);
    }
}

/// Two peers, two rails over two NICs to each, two connections per rail and target.
fn arbiter(policy: Policy) -> RailArbiter {
    let mut connections = Vec::new();
    for peer in 0..2 {
        for rail in 0..2u8 {
            for _ in 0..2 {
                connections.push(ConnectionRail {
                    peer,
                    rail: RailId(rail),
                    target: 0,
                    nic: usize::from(rail),
                });
            }
        }
    }
    let peers = [cfgs(policy, 2), cfgs(policy, 2)];
    let a = RailArbiter::new(&peers, connections).expect("good");
    for connection in 0..8 {
        a.connection_up(0, connection, &mut |_| {});
    }
    a
}

#[test]
fn connections_are_used_evenly_and_full_ones_are_passed_over() {
    for policy in policies() {
        let a = arbiter(policy);
        let mut in_flight = [0usize; 8];
        for _ in 0..8 * 10 {
            let slots = 10;
            let load = |i: usize| Load {
                up: true,
                in_flight: in_flight[i],
                slots,
            };
            let connection = a.pick(0, LEN, load).expect("there is room");
            in_flight[connection] += 1;
        }
        assert_eq!(in_flight, [10; 8], "{policy:?}");
        let full = |i: usize| Load {
            up: true,
            in_flight: in_flight[i],
            slots: 10,
        };
        assert_eq!(a.pick(0, LEN, full), None);
        for (connection, n) in in_flight.iter().enumerate() {
            for i in 0..*n {
                if i % 2 == 0 {
                    a.complete(connection, LEN, BASE);
                } else {
                    a.take_back(connection, LEN);
                }
            }
        }
        for peer in 0..2 {
            let report = a.report(peer);
            assert!(report.iter().all(|r| r.assigned_bytes == 0), "{report:?}");
        }
    }
}

#[test]
fn a_rail_is_lost_with_its_last_connection_and_the_fault_is_named() {
    let a = arbiter(spray());
    let mut changes = Vec::new();
    a.connection_lost(1, 0, None, false, &mut |c| changes.push(c));
    assert!(changes.is_empty(), "its other connection is up");
    a.connection_lost(1, 1, None, false, &mut |c| changes.push(c));
    assert_eq!(changes[0].to, RailState::Down(Some(Fault::Path)));
    // The same NIC's rail to the other peer is lost too; the other NIC reaches that peer.
    a.connection_lost(2, 4, None, false, &mut |c| changes.push(c));
    a.connection_lost(2, 5, None, false, &mut |c| changes.push(c));
    assert_eq!(changes[1].to, RailState::Down(Some(Fault::LocalNic)));
    // The last rail to the first peer is lost, with its control session.
    a.connection_lost(3, 2, Some(false), true, &mut |c| changes.push(c));
    a.connection_lost(3, 3, Some(false), true, &mut |c| changes.push(c));
    assert_eq!(changes[2].to, RailState::Down(Some(Fault::Peer)));
    let up = |i: usize| Load {
        up: i >= 6,
        in_flight: 0,
        slots: 9,
    };
    for _ in 0..4 {
        assert!(a.pick(4, LEN, up).expect("the other peer") >= 6);
    }
}
