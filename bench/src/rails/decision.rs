//! What one decision by health costs, its completion included.

use std::{hint::black_box, time::Instant};

use anyhow::Result;
use qdl::rails::{HealthCfgs, PeerCfgs, PeerRails, RailId, RailPolicy, Score, Want};
use serde::Serialize;

/// Cost of a decision.
#[derive(Debug, Serialize)]
pub struct Decision {
    rails: usize,
    policy: &'static str,
    ns: f64,
    allocations: u64,
}

/// Measures every policy over 8 to 256 rails, and prints a line for each.
pub fn measure() -> Result<Vec<Decision>> {
    println!("cost of a decision, its completion included");
    println!(
        "  {:<18} {:>6} {:>8} {:>12}",
        "policy", "rails", "ns", "allocations"
    );
    let spray = RailPolicy::HealthSpray {
        delta: Score::from_ratio(1, 4),
        above_only: false,
    };
    let policies = [
        ("best", RailPolicy::Best),
        ("health_best_fit", RailPolicy::HealthBestFit),
        ("health_spray", spray),
    ];
    let mut all = Vec::new();
    for rails in [8, 64, 256] {
        for (name, policy) in policies {
            let d = decision(rails, name, policy)?;
            println!(
                "  {:<18} {:>6} {:>8.0} {:>12}",
                d.policy, d.rails, d.ns, d.allocations
            );
            all.push(d);
        }
    }
    Ok(all)
}

fn decision(rails: usize, name: &'static str, policy: RailPolicy) -> Result<Decision> {
    const ROUNDS: u64 = 1_000_000;
    const IN_FLIGHT: usize = 512;
    let all: Vec<_> = (0..rails).map(|r| RailId(r as u8)).collect();
    let group = rails.div_ceil(8);
    let mut peer = PeerRails::new(&PeerCfgs {
        policy,
        health: HealthCfgs::default(),
        rails,
        targets: all.chunks(group).map(<[_]>::to_vec).collect(),
    })?;
    peer.set_far(Score::from_ratio(9, 10));
    for r in &all {
        peer.restored(0, *r, &mut |_| {});
    }
    let meters = peer.meters().clone();
    let targets = rails.div_ceil(group);
    let mut in_flight = vec![None; IN_FLIGHT];
    let mut best = f64::INFINITY;
    let mut allocations = 0;
    // The machine is shared: the best of several rounds, the allocations of all.
    for round in 0..4u64 {
        let before = alloc_count::of_process();
        let begin = Instant::now();
        for i in 0..ROUNDS {
            let now = (round * ROUNDS + i) * 1000;
            let want = Want {
                target: i as usize % targets,
                len: 150_528,
            };
            let choice = peer.pick(now, want, |_| true);
            if let Some(rail) = std::mem::replace(&mut in_flight[i as usize % IN_FLIGHT], choice) {
                meters.completed(rail, 150_528, 100_000 + u64::from(rail.0 % 7) * 9000);
            }
            peer.tick(now, &mut |c| {
                black_box(c);
            });
        }
        let ns = begin.elapsed().as_nanos() as f64 / ROUNDS as f64;
        allocations += alloc_count::of_process() - before;
        if round > 0 {
            best = best.min(ns);
        }
    }
    Ok(Decision {
        rails,
        policy: name,
        ns: best,
        allocations,
    })
}
