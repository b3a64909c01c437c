//! NICs, links and nodes of the model: queues, each served in order of arrival.

use fastrand::Rng;

use super::model::Scenario;

/// D: nodes at the far end.
pub const NODES: usize = 4;
/// Queue pairs between the two ends of a rail, and the links that they are hashed onto.
pub const FLOWS: usize = 16;
const LINKS: usize = 4;
/// What is left of a congested link's rate.
const LEFT: f64 = 0.1;
/// Time a NIC takes for a sample: 150,528 bytes at 10 Gbit/s.
pub const NIC_NS: u64 = 120_422;
/// Time of the engine and of the response's way back.
pub const ENGINE_NS: u64 = 210_000;

/// Where a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Out,
    Link,
    In,
    Interior,
    Engine,
    Done,
}

/// A sample's way.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub node: usize,
    pub rail: usize,
    pub flow: usize,
    /// Over the far node's interior.
    pub crosses: bool,
}

/// All queues, each as the time at which it is free.
pub struct Queues<'a> {
    s: &'a Scenario,
    out: Vec<u64>,
    links: Vec<u64>,
    into: Vec<u64>,
    interior: Vec<u64>,
    /// Link of each (node, rail, flow).
    hash: Vec<usize>,
}

/// When what arrives now at a queue and takes so long is through.
fn through(queue: &mut u64, now: u64, takes_ns: u64) -> u64 {
    *queue = now.max(*queue) + takes_ns;
    *queue
}

impl<'a> Queues<'a> {
    pub fn new(s: &'a Scenario, random: &mut Rng) -> Self {
        let ends = NODES * s.rails;
        Queues {
            out: vec![0; s.rails],
            links: vec![0; s.rails * LINKS],
            into: vec![0; ends],
            interior: vec![0; NODES],
            hash: (0..ends * FLOWS).map(|_| random.usize(..LINKS)).collect(),
            s,
        }
    }

    /// Puts a sample into the queue of its stage; returns when it is through, and its next stage.
    pub fn enter(&mut self, now: u64, stage: Stage, w: &Way) -> (u64, Stage) {
        let end = w.node * self.s.rails + w.rail;
        match stage {
            Stage::Out => (through(&mut self.out[w.rail], now, NIC_NS), Stage::Link),
            Stage::Link => {
                let mut takes = NIC_NS * LINKS as u64;
                if w.rail < self.s.congested && now >= self.s.congested_ns {
                    takes = (takes as f64 / LEFT) as u64;
                }
                let link = w.rail * LINKS + self.hash[end * FLOWS + w.flow];
                (through(&mut self.links[link], now, takes), Stage::In)
            }
            Stage::In => {
                let at = through(&mut self.into[end], now, NIC_NS);
                (
                    at,
                    if w.crosses {
                        Stage::Interior
                    } else {
                        Stage::Engine
                    },
                )
            }
            Stage::Interior => {
                // An interior carries twice what the node's NICs can bring.
                let takes = (NIC_NS / (2 * self.s.rails as u64)).max(1);
                let at = through(&mut self.interior[w.node], now, takes);
                (at + NIC_NS / 4, Stage::Engine)
            }
            Stage::Engine | Stage::Done => (now + ENGINE_NS, Stage::Done),
        }
    }
}
