//! The model's queues.

use super::Scenario;

/// SplitMix64: small, seeded, good enough for arrivals and hashes.
#[derive(Clone, Debug)]
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Above 0, at most 1.
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// A queue served in order of arrival.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    free_ns: u64,
}

impl Queue {
    /// When what arrives now and takes so long is through.
    fn through(&mut self, now: u64, takes_ns: u64) -> u64 {
        self.free_ns = self.free_ns.max(now) + takes_ns;
        self.free_ns
    }
}

/// Where a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Out,
    Link,
    In,
    Interior,
    Engine,
    Response,
}

/// A sample's way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub node: usize,
    pub rail: usize,
    pub flow: usize,
    /// Over the far node's interior.
    pub crosses: bool,
}

/// All queues.
pub(super) struct Fabric<'a> {
    s: &'a Scenario,
    out: Vec<Queue>,
    links: Vec<Queue>,
    into: Vec<Queue>,
    interior: Vec<Queue>,
    /// Link of each (node, rail, flow).
    hash: Vec<u8>,
    /// Nanoseconds that a NIC needs for a sample.
    nic_ns: u64,
}

/// Time of the engine and of a response on its way, in nanoseconds: the same for all.
pub(super) const ENGINE_NS: u64 = 200_000;
const RESPONSE_NS: u64 = 10_000;

impl<'a> Fabric<'a> {
    pub fn new(s: &'a Scenario, random: &mut Random) -> Self {
        let pairs = s.nodes * s.rails;
        Fabric {
            out: vec![Queue::default(); s.rails],
            links: vec![Queue::default(); s.rails * s.links],
            into: vec![Queue::default(); pairs],
            interior: vec![Queue::default(); s.nodes],
            hash: (0..pairs * s.flows)
                .map(|_| (random.next() % s.links as u64) as u8)
                .collect(),
            nic_ns: u64::from(s.len) * 1000 / s.nic_rate,
            s,
        }
    }

    /// Puts a sample into the queue of its stage; returns when it is through, and its next stage.
    pub fn enter(&mut self, now: u64, stage: Stage, w: &Way) -> (u64, Stage) {
        let s = self.s;
        match stage {
            Stage::Out => (self.out[w.rail].through(now, self.nic_ns), Stage::Link),
            Stage::Link => {
                let flow = (w.node * s.rails + w.rail) * s.flows + w.flow;
                let link = usize::from(self.hash[flow]);
                let mut takes = self.nic_ns * s.links as u64;
                if w.rail < s.congested && now >= s.congested_us * 1000 {
                    takes = (takes as f64 / s.left) as u64;
                }
                let queue = &mut self.links[w.rail * s.links + link];
                (queue.through(now, takes), Stage::In)
            }
            Stage::In => {
                let queue = &mut self.into[w.node * s.rails + w.rail];
                let next = if w.crosses {
                    Stage::Interior
                } else {
                    Stage::Engine
                };
                (queue.through(now, self.nic_ns), next)
            }
            Stage::Interior => {
                // An interior carries twice what the node's NICs can bring.
                let takes = self.nic_ns / (2 * s.rails as u64);
                let queue = &mut self.interior[w.node];
                (
                    queue.through(now, takes.max(1)) + self.nic_ns / 4,
                    Stage::Engine,
                )
            }
            Stage::Engine => (now + ENGINE_NS, Stage::Response),
            Stage::Response => (now + RESPONSE_NS, Stage::Response),
        }
    }

    pub fn nic_ns(&self) -> u64 {
        self.nic_ns
    }
}
