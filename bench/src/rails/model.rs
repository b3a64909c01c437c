//! A discrete-event model of one frontend, D accelerators and the K rails between them. It drives
//! the frontend's own `Arbiter` and `RailArbiter` with a simulated clock.
//!
//! ```text
//! LoadGen -> arbiter -> NIC x out -> link -> NIC (d, x) in -> interior of d -> engine
//! (Poisson)    ^         rate C      rate C    rate C         where the rail is    |
//!              |                                              not the GPU's own    |
//!              +-------------- response: a fixed delay <---------------------------+
//! ```
//!
//! Each box is a first-come, first-served queue; a sample leaves a queue completely before it
//! enters the next. After a quarter of the run, a congested link keeps a tenth of its rate. The
//! model omits packets, losses, batches, and flows that collide on one of several links.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use fastrand::Rng;
use qdl::{
    config::HealthConfig,
    rails::{
        Arbiter, ConnectionRail, Load, PeerCfgs, Policy, RailArbiter, RailId, RailsError, Score,
    },
};
use serde::Serialize;

/// D, the number of accelerator nodes.
const NODES: usize = 4;
/// Share of its rate that a congested link keeps.
const CONGESTED_RATE: f64 = 0.1;
/// Service time of a NIC for one sample in ns: 150,528 bytes at 10 Gbit/s.
const NIC_NS: u64 = 120_422;
/// Time of the engine and of the response together, in ns.
const ENGINE_NS: u64 = 210_000;
const LEN: u32 = 150_528;
/// Arrival rate as a share of the capacity of all NICs.
const LOAD: f64 = 0.6;
/// Slots: most samples in flight per rail of a node.
const SLOTS: usize = 64;
/// Health score of a node's interior while no sample crosses the interior.
const INTERIOR: f32 = 0.9;

#[derive(Clone, Debug)]
pub struct Scenario {
    rails: usize,
    /// Number of congested rails: rails `0, 1, ..` have a congested link.
    congested: usize,
    /// Time at which congestion begins, in ns.
    congested_ns: u64,
    /// Number of rails whose capacity, times [`LOAD`], is the arrival rate.
    arrivals: usize,
    /// Time in ns during which samples arrive. Samples of the second half count for latency.
    duration_ns: u64,
    policy: Policy,
    seed: u64,
}

impl Scenario {
    /// Some hundred thousand samples / `shorten`; 5 % of the rails, at least one, are congested.
    pub fn new(rails: usize, policy: Policy, shorten: u64) -> Self {
        let duration_ns = match rails {
            0..32 => 8_000_000_000,
            32..128 => 1_600_000_000,
            _ => 800_000_000,
        } / shorten;
        Scenario {
            rails,
            congested: (rails * 5).div_ceil(100),
            congested_ns: duration_ns / 4,
            arrivals: rails,
            duration_ns,
            policy,
            seed: 1,
        }
    }

    /// The same arrival rate without the congested rails: each other rail carries more samples.
    #[must_use]
    pub fn without_congested(self) -> Self {
        Scenario {
            rails: self.rails - self.congested,
            congested: 0,
            ..self
        }
    }
}

/// Result for the samples that arrived in the second half of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    pub samples: usize,
    /// 99th percentile of the time from arrival to response, in us.
    pub p99_us: f64,
    /// Share of the samples that used a congested rail.
    pub congested_share: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Out,
    Link,
    In,
    Interior,
    Engine,
    Done,
}

/// A sample in flight. The order is by `at_ns`, then by the unique `number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SampleInFlight {
    /// Time in ns at which the sample leaves its current queue.
    at_ns: u64,
    number: u64,
    stage: Stage,
    node: usize,
    rail: usize,
    /// True if the sample crosses the far node's interior.
    crosses: bool,
    connection: usize,
    arrived_ns: u64,
    posted_ns: u64,
}

/// All queues. A queue is the time in ns at which its last sample leaves.
struct Queues<'a> {
    s: &'a Scenario,
    out: Vec<u64>,
    links: Vec<u64>,
    into: Vec<u64>,
    interior: Vec<u64>,
}

/// Adds a sample that arrives at `now` and needs `takes_ns` of service; returns its leaving time.
fn through(queue: &mut u64, now: u64, takes_ns: u64) -> u64 {
    *queue = now.max(*queue) + takes_ns;
    *queue
}

impl<'a> Queues<'a> {
    fn new(s: &'a Scenario) -> Self {
        Queues {
            out: vec![0; s.rails],
            links: vec![0; s.rails],
            into: vec![0; NODES * s.rails],
            interior: vec![0; NODES],
            s,
        }
    }

    /// Puts the sample into the queue of its stage; sets its leaving time and its next stage.
    fn enter(&mut self, f: &mut SampleInFlight) {
        let now = f.at_ns;
        (f.at_ns, f.stage) = match f.stage {
            Stage::Out => (through(&mut self.out[f.rail], now, NIC_NS), Stage::Link),
            Stage::Link => {
                let mut takes = NIC_NS;
                if f.rail < self.s.congested && now >= self.s.congested_ns {
                    takes = (takes as f64 / CONGESTED_RATE) as u64;
                }
                (through(&mut self.links[f.rail], now, takes), Stage::In)
            }
            Stage::In => {
                let end = f.node * self.s.rails + f.rail;
                let at = through(&mut self.into[end], now, NIC_NS);
                (
                    at,
                    if f.crosses {
                        Stage::Interior
                    } else {
                        Stage::Engine
                    },
                )
            }
            Stage::Interior => {
                // An interior has twice the capacity of the node's NICs.
                let takes = (NIC_NS / (2 * self.s.rails as u64)).max(1);
                let at = through(&mut self.interior[f.node], now, takes);
                (at + NIC_NS / 4, Stage::Engine)
            }
            Stage::Engine | Stage::Done => (now + ENGINE_NS, Stage::Done),
        };
    }
}

/// The arbiter that chooses the connection of a sample, as in a dispatcher.
enum Chooser {
    Plain(Arbiter),
    Rails(RailArbiter),
}

struct Model {
    rails: usize,
    chooser: Chooser,
    connections: Vec<ConnectionRail>,
    /// Samples in flight, for each pair of node and rail (index: node * rails + rail).
    in_flight: Vec<usize>,
}

/// GPUs per node. Each GPU owns an equal, contiguous share of the rails.
fn gpus(rails: usize) -> usize {
    rails.clamp(1, 8)
}

fn own_gpu(rail: usize, rails: usize) -> usize {
    rail * gpus(rails) / rails
}

impl Model {
    fn new(s: &Scenario) -> Result<Self, RailsError> {
        let rails = s.rails;
        let by_health = s.policy.by_health();
        let mut connections = Vec::new();
        for (peer, nic) in (0..NODES).flat_map(|p| (0..rails).map(move |x| (p, x))) {
            let rail = RailId(nic as u8);
            for target in 0..gpus(rails) {
                // The plain arbiter reaches a GPU over the GPU's own rails only.
                if by_health.is_some() || own_gpu(nic, rails) == target {
                    connections.push(ConnectionRail {
                        peer,
                        rail,
                        target,
                        nic,
                    });
                }
            }
        }
        let chooser = match by_health {
            None => Chooser::Plain(Arbiter::new(s.policy)),
            Some(policy) => {
                let own = |gpu| {
                    let mine = (0..rails).filter(|x| own_gpu(*x, rails) == gpu);
                    mine.map(|x| RailId(x as u8)).collect()
                };
                let peer = PeerCfgs {
                    policy,
                    health: HealthConfig::default(),
                    rails,
                    targets: (0..gpus(rails)).map(own).collect(),
                };
                let arbiter = RailArbiter::new(&vec![peer; NODES], connections.clone())?;
                for connection in 0..connections.len() {
                    arbiter.connection_up(0, connection, &mut |_| {});
                }
                for peer in 0..NODES {
                    arbiter.set_peers_scores(peer, Score::from_f32(INTERIOR), []);
                }
                Chooser::Rails(arbiter)
            }
        };
        Ok(Model {
            rails,
            chooser,
            in_flight: vec![0; NODES * rails],
            connections,
        })
    }

    fn pair(&self, connection: usize) -> usize {
        let l = &self.connections[connection];
        l.peer * self.rails + l.nic
    }

    fn pick(&self, now: u64) -> Option<usize> {
        let load = |connection: usize| Load {
            up: true,
            in_flight: self.in_flight[self.pair(connection)],
            slots: SLOTS,
        };
        match &self.chooser {
            Chooser::Plain(a) => a.pick(self.connections.len(), load),
            Chooser::Rails(a) => a.pick(now, LEN, load),
        }
    }

    fn post(
        &mut self,
        connection: usize,
        number: u64,
        arrived_ns: u64,
        now: u64,
    ) -> SampleInFlight {
        let pair = self.pair(connection);
        self.in_flight[pair] += 1;
        let l = &self.connections[connection];
        SampleInFlight {
            at_ns: now,
            number,
            stage: Stage::Out,
            node: l.peer,
            rail: l.nic,
            crosses: own_gpu(l.nic, self.rails) != l.target,
            connection,
            arrived_ns,
            posted_ns: now,
        }
    }

    fn complete(&mut self, f: &SampleInFlight) {
        let pair = self.pair(f.connection);
        self.in_flight[pair] -= 1;
        if let Chooser::Rails(a) = &self.chooser {
            let network = (f.at_ns - f.posted_ns).saturating_sub(ENGINE_NS);
            a.complete(f.connection, LEN, network);
        }
    }
}

/// Runs the model until every sample is answered.
pub fn run(s: &Scenario) -> Result<Outcome, RailsError> {
    let mut random = Rng::with_seed(s.seed);
    let mut queues = Queues::new(s);
    let mut model = Model::new(s)?;
    let gap_ns = NIC_NS as f64 / (LOAD * s.arrivals as f64);

    let mut events: BinaryHeap<Reverse<SampleInFlight>> = BinaryHeap::new();
    let mut backlog: VecDeque<u64> = VecDeque::new();
    let mut latencies: Vec<u64> = Vec::new();
    let (mut congested, mut next_arrival, mut posted) = (0, 0, 0);
    loop {
        let event = events.peek().map(|Reverse(f)| f.at_ns);
        let now = if next_arrival < s.duration_ns && event.is_none_or(|at| next_arrival <= at) {
            let now = next_arrival;
            backlog.push_back(now);
            next_arrival += (-(1.0 - random.f64()).ln() * gap_ns) as u64;
            now
        } else {
            let Some(Reverse(mut f)) = events.pop() else {
                break;
            };
            if f.stage != Stage::Done {
                queues.enter(&mut f);
                events.push(Reverse(f));
                continue;
            }
            model.complete(&f);
            if f.arrived_ns >= s.duration_ns / 2 {
                latencies.push(f.at_ns - f.arrived_ns);
                congested += usize::from(f.rail < s.congested);
            }
            f.at_ns
        };
        if let Chooser::Rails(a) = &model.chooser {
            a.tick(now, &mut |_, _| {});
        }
        while let Some(arrived_ns) = backlog.front().copied()
            && let Some(connection) = model.pick(now)
        {
            backlog.pop_front();
            posted += 1;
            events.push(Reverse(model.post(connection, posted, arrived_ns, now)));
        }
    }
    latencies.sort_unstable();
    let samples = latencies.len();
    let p99 = latencies.get(samples * 99 / 100).copied();
    Ok(Outcome {
        samples,
        p99_us: p99.map_or(0.0, |ns| ns as f64 / 1000.0),
        congested_share: congested as f64 / samples.max(1) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let mut s = Scenario::new(8, Policy::Best, 80);
        let first = run(&s).expect("eight rails");
        assert_eq!(run(&s).expect("eight rails"), first);
        s.seed += 1;
        assert_ne!(run(&s).expect("eight rails"), first);
    }

    #[test]
    fn every_sample_comes_back() {
        let s = Scenario::new(4, Policy::RoundRobin, 40);
        let samples = run(&s).expect("four rails").samples as f64;
        let expected = LOAD * 4.0 * (s.duration_ns / 2) as f64 / NIC_NS as f64;
        assert!((samples / expected - 1.0).abs() < 0.1, "{samples}");
    }
}
