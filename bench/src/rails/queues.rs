//! NICs, links and interiors of the model as first-come, first-served queues.

use super::model::Scenario;

/// D, the number of accelerator nodes.
pub const NODES: usize = 4;
/// Share of its rate that a congested link keeps.
const LEFT: f64 = 0.1;
/// Service time of a NIC for one sample in ns: 150,528 bytes at 10 Gbit/s.
pub const NIC_NS: u64 = 120_422;
/// Time of the engine and of the response in ns.
pub const ENGINE_NS: u64 = 210_000;

/// The next queue of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Out,
    Link,
    In,
    Interior,
    Engine,
    Done,
}

/// A sample in flight. Ordered by the time of its next event; numbers are unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flying {
    /// Time at which the sample leaves its last queue, in ns.
    pub at_ns: u64,
    pub number: u64,
    /// The queue that it enters next.
    pub stage: Stage,
    pub node: usize,
    pub rail: usize,
    /// Whether it crosses the far node's interior.
    pub crosses: bool,
    pub connection: usize,
    pub arrived_ns: u64,
    pub posted_ns: u64,
}

/// All queues, each as the time in ns at which it becomes free.
pub struct Queues<'a> {
    s: &'a Scenario,
    out: Vec<u64>,
    links: Vec<u64>,
    into: Vec<u64>,
    interior: Vec<u64>,
}

/// Serves a sample that arrives at `now` for `takes_ns`. Returns the time when it leaves.
fn through(queue: &mut u64, now: u64, takes_ns: u64) -> u64 {
    *queue = now.max(*queue) + takes_ns;
    *queue
}

impl<'a> Queues<'a> {
    pub fn new(s: &'a Scenario) -> Self {
        Queues {
            out: vec![0; s.rails],
            links: vec![0; s.rails],
            into: vec![0; NODES * s.rails],
            interior: vec![0; NODES],
            s,
        }
    }

    /// Puts a sample into the queue of its stage: sets its leaving time and its next stage.
    pub fn enter(&mut self, f: &mut Flying) {
        let now = f.at_ns;
        (f.at_ns, f.stage) = match f.stage {
            Stage::Out => (through(&mut self.out[f.rail], now, NIC_NS), Stage::Link),
            Stage::Link => {
                let mut takes = NIC_NS;
                if f.rail < self.s.congested && now >= self.s.congested_ns {
                    takes = (takes as f64 / LEFT) as u64;
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
