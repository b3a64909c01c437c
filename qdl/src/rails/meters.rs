//! The meters of all rails to a peer, shared by the threads that choose and those that complete:
//! atomics, no lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use super::{MAX_RAILS, Meter, RailId};

/// See the module.
#[derive(Debug)]
pub struct Meters {
    rails: Box<[CachePadded<Meter>]>,
    /// A bit for each rail whose bytes have changed since the sorted list was last put right.
    dirty: [CachePadded<AtomicU64>; MAX_RAILS / 64],
}

impl Meters {
    pub(super) fn new(rails: usize) -> Self {
        Meters {
            rails: (0..rails).map(|_| CachePadded::default()).collect(),
            dirty: Default::default(),
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
            self.mark(rail);
        }
    }

    /// A sample that was assigned to `rail` goes another way after all: it could not be posted, or
    /// its connection was lost.
    pub fn taken_back(&self, rail: RailId, len: u32) {
        if let Some(m) = self.get(rail) {
            m.retire(len);
            self.mark(rail);
        }
    }

    fn mark(&self, rail: RailId) {
        let word = &self.dirty[rail.index() / 64];
        let bit = 1 << (rail.0 % 64);
        // Most of the time it is set already: a read is cheaper than taking the line away from
        // others.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Visits at most `most` dirty rails and clears their bits.
    pub(super) fn clean(&self, most: usize, mut each: impl FnMut(RailId, &Meter)) {
        let mut left = most;
        for (i, word) in self.dirty.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 && left > 0 {
                let bit = bits & bits.wrapping_neg();
                bits ^= bit;
                // Cleared before it is looked at: what comes after sets it again.
                word.fetch_and(!bit, Ordering::Relaxed);
                let rail = RailId((i * 64) as u8 + bit.trailing_zeros() as u8);
                if let Some(m) = self.get(rail) {
                    each(rail, m);
                }
                left -= 1;
            }
        }
    }
}
