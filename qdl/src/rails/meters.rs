//! Meters of all rails to a peer. The threads that choose rails and those that complete samples
//! share them through atomics, without a lock.

use crossbeam_utils::CachePadded;

use super::{Meter, RailId};

/// The meters of all rails to one peer.
#[derive(Debug)]
pub struct Meters {
    rails: Box<[CachePadded<Meter>]>,
}

impl Meters {
    pub(super) fn new(rails: usize) -> Self {
        Meters {
            rails: (0..rails).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Returns a rail's meter; `None` if the rail does not exist.
    pub fn get(&self, rail: RailId) -> Option<&Meter> {
        self.rails.get(rail.index()).map(|m| &**m)
    }

    /// Records a response over `rail`: retires the sample's `len` bytes and records `network_ns`,
    /// the round trip minus the residence. Only the rail's own thread calls it.
    pub fn completed(&self, rail: RailId, len: u32, network_ns: u64) {
        if let Some(m) = self.get(rail) {
            m.gauge.observe_behind(len, network_ns, m.queue_ns(len));
            m.deliver(len);
            m.retire(len);
        }
    }

    /// Takes back a sample assigned to `rail`, because it could not be posted or its connection was
    /// lost.
    pub fn taken_back(&self, rail: RailId, len: u32) {
        if let Some(m) = self.get(rail) {
            m.retire(len);
        }
    }
}
