//! The meters of all rails to a peer, shared by the threads that choose and those that complete:
//! atomics, no lock.

use crossbeam_utils::CachePadded;

use super::{Meter, RailId};

/// See the module.
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

    /// A rail's meter; `None` where there is no such rail.
    pub fn get(&self, rail: RailId) -> Option<&Meter> {
        self.rails.get(rail.index()).map(|m| &**m)
    }

    /// A sample's response has come over `rail`: its `len` bytes are no longer in flight, and they
    /// took `network_ns` (round trip minus residence). Called by the rail's own thread.
    pub fn completed(&self, rail: RailId, len: u32, network_ns: u64) {
        if let Some(m) = self.get(rail) {
            m.gauge.observe_behind(len, network_ns, m.queue_ns(len));
            m.deliver(len);
            m.retire(len);
        }
    }

    /// A sample that was assigned to `rail` goes another way after all: it could not be posted, or
    /// its connection was lost.
    pub fn taken_back(&self, rail: RailId, len: u32) {
        if let Some(m) = self.get(rail) {
            m.retire(len);
        }
    }
}
