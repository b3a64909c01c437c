//! The event loop of the model.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use qdl::rails::{
    Arbiter, ConnectionRail, HealthCfgs, Load, PeerCfgs, RailArbiter, RailArbiterCfgs, RailId,
    RailsError, Score,
};

use super::{
    Outcome, Scenario, SimPolicy,
    fabric::{ENGINE_NS, Fabric, Random, Stage, Way},
};

/// Health of a node's interior in the model: what the crossing costs an idle sample.
const INTERIOR: f32 = 0.9;

struct Flying {
    arrived_ns: u64,
    posted_ns: u64,
    connection: usize,
    way: Way,
}

/// Chooses connections, as a dispatcher would.
enum Chooser {
    Plain(Arbiter),
    Rails(RailArbiter),
}

struct Model<'a> {
    s: &'a Scenario,
    chooser: Chooser,
    connections: Vec<ConnectionRail>,
    /// Rails are numbered anew where the congested ones are left out.
    first_rail: usize,
    /// Samples in flight by node and rail, and flows handed out.
    in_flight: Vec<usize>,
    flow: Vec<usize>,
    crosses: Vec<bool>,
}

impl<'a> Model<'a> {
    fn new(s: &'a Scenario) -> Result<Self, RailsError> {
        let first_rail = if s.without_congested { s.congested } else { 0 };
        let rails = s.rails - first_rail;
        // The rails are shared out among the GPUs in order, as NICs are.
        let gpu_of = |x: usize| (x + first_rail) * s.gpus / s.rails;
        let mut connections = Vec::new();
        let mut crosses = Vec::new();
        for peer in 0..s.nodes {
            for x in 0..rails {
                for target in 0..s.gpus {
                    let own = gpu_of(x) == target;
                    // The plain arbiter knows own rails only.
                    if own || matches!(s.policy, SimPolicy::Rails(_)) {
                        connections.push(ConnectionRail {
                            peer,
                            rail: RailId(x as u8),
                            target,
                            nic: x,
                        });
                        crosses.push(!own);
                    }
                }
            }
        }
        let chooser = match s.policy {
            SimPolicy::Plain(p) => Chooser::Plain(Arbiter::new(p)),
            SimPolicy::Rails(policy) => {
                let own = |g| {
                    let mine = |x: &usize| gpu_of(*x) == g;
                    (0..rails).filter(mine).map(|x| RailId(x as u8)).collect()
                };
                let peer = PeerCfgs {
                    policy,
                    health: HealthCfgs::default(),
                    rails,
                    targets: (0..s.gpus).map(own).collect(),
                };
                let arbiter = RailArbiter::new(&RailArbiterCfgs {
                    peers: vec![peer; s.nodes],
                    connections: connections.clone(),
                })?;
                for connection in 0..connections.len() {
                    arbiter.connection_up(0, connection, &mut |_| {});
                }
                for peer in 0..s.nodes {
                    arbiter.told(peer, Score::from_f32(INTERIOR), []);
                }
                Chooser::Rails(arbiter)
            }
        };
        Ok(Model {
            s,
            chooser,
            in_flight: vec![0; s.nodes * s.rails],
            flow: vec![0; s.nodes * s.rails],
            connections,
            first_rail,
            crosses,
        })
    }

    fn pair(&self, connection: usize) -> usize {
        let l = &self.connections[connection];
        l.peer * self.s.rails + self.first_rail + l.rail.index()
    }

    fn pick(&self, now: u64) -> Option<usize> {
        let load = |connection: usize| Load {
            up: true,
            in_flight: self.in_flight[self.pair(connection)],
            slots: self.s.slots,
        };
        match &self.chooser {
            Chooser::Plain(a) => a.pick(self.connections.len(), load),
            Chooser::Rails(a) => a.pick(now, self.s.len, load),
        }
    }

    fn way(&mut self, connection: usize) -> Way {
        let pair = self.pair(connection);
        self.in_flight[pair] += 1;
        let flow = self.flow[pair];
        self.flow[pair] = (flow + 1) % self.s.flows;
        Way {
            node: self.connections[connection].peer,
            rail: pair % self.s.rails,
            flow,
            crosses: self.crosses[connection],
        }
    }

    fn completed(&mut self, now: u64, f: &Flying) {
        let pair = self.pair(f.connection);
        self.in_flight[pair] -= 1;
        if let Chooser::Rails(a) = &self.chooser {
            let network = (now - f.posted_ns).saturating_sub(ENGINE_NS);
            a.completed(f.connection, self.s.len, network);
        }
    }
}

/// Runs the model.
///
/// # Errors
/// [`RailsError`] where the scenario has no rails or too many.
pub fn run(s: &Scenario) -> Result<Outcome, RailsError> {
    let mut random = Random(s.seed);
    let mut fabric = Fabric::new(s, &mut random);
    let mut model = Model::new(s)?;
    let gap_ns = fabric.nic_ns() as f64 / (s.load * s.rails as f64);
    let (end, half) = (s.duration_us * 1000, s.duration_us * 500);

    let mut events = BinaryHeap::new();
    let mut flying: Vec<Flying> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut backlog: VecDeque<u64> = VecDeque::new();
    let mut latencies: Vec<u64> = Vec::new();
    let mut busy = vec![0u64; s.rails];
    let (mut congested, mut crossed) = (0u64, 0u64);
    let mut outcome = Outcome::default();
    let mut next_arrival = 0u64;

    loop {
        let event = events
            .peek()
            .map(|Reverse((at, ..)): &Reverse<(u64, usize, Stage)>| *at);
        let arrives = next_arrival < end && event.is_none_or(|at| next_arrival <= at);
        let now = if arrives {
            let now = next_arrival;
            backlog.push_back(now);
            outcome.backlog_max = outcome.backlog_max.max(backlog.len());
            next_arrival += (-random.unit().ln() * gap_ns) as u64;
            now
        } else {
            let Some(Reverse((now, i, stage))) = events.pop() else {
                break;
            };
            if stage == Stage::Response {
                let f = &flying[i];
                model.completed(now, f);
                if f.arrived_ns >= half {
                    latencies.push(now - f.arrived_ns);
                    congested += u64::from(f.way.rail < s.congested);
                    crossed += u64::from(f.way.crosses);
                }
                free.push(i);
            } else {
                let way = flying[i].way;
                let (at, next) = fabric.enter(now, stage, &way);
                if stage == Stage::Link && now >= half && now < end {
                    busy[way.rail] += fabric.nic_ns();
                }
                events.push(Reverse((at, i, next)));
                continue;
            }
            now
        };
        if let Chooser::Rails(a) = &model.chooser {
            a.tick(now, &mut |_, _| outcome.changes += 1);
        }
        while let Some(arrived_ns) = backlog.front().copied() {
            let Some(connection) = model.pick(now) else {
                break;
            };
            backlog.pop_front();
            let sample = Flying {
                arrived_ns,
                posted_ns: now,
                connection,
                way: model.way(connection),
            };
            let i = free.pop().unwrap_or(flying.len());
            if i == flying.len() {
                flying.push(sample);
            } else {
                flying[i] = sample;
            }
            events.push(Reverse((now, i, Stage::Out)));
        }
    }

    latencies.sort_unstable();
    let at = |q: f64| {
        let i = (latencies.len() as f64 * q) as usize;
        let ns = latencies.get(i.min(latencies.len().saturating_sub(1)));
        ns.map_or(0.0, |ns| *ns as f64 / 1000.0)
    };
    let n = latencies.len().max(1) as f64;
    let part = |ns: u64| ns as f64 / (end - half) as f64;
    let healthy = &busy[s.congested..];
    Ok(Outcome {
        samples: latencies.len() as u64,
        p50_us: at(0.5),
        p99_us: at(0.99),
        p999_us: at(0.999),
        healthy_utilisation: part(healthy.iter().sum()) / healthy.len().max(1) as f64,
        highest_utilisation: part(busy.iter().copied().max().unwrap_or(0)),
        congested_share: congested as f64 / n,
        crossed_share: crossed as f64 / n,
        ..outcome
    })
}
