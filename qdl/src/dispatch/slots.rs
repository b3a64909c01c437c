//! How many slots of each connection are in use: one number, from what the accelerator's engine
//! works on at once.
//!
//! Memory is granted for many slots. Samples in flight beyond the need wait in queues, and their
//! memory leaves the caches. So a connection uses its first slots alone
//! ([`Tracker::allow`](crate::connection::tracker::Tracker::allow)), as many as [`in_use`] says.
//! The number is computed when a connection or an accelerator comes or goes, never from a rate.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use super::{Dispatcher, Shared};

/// Batches in flight for each that computes: one on its way out, one that computes, one on its way
/// back.
const BATCHES: u64 = 3;
/// Bytes of samples in flight on a connection that its core's caches hold (measured with second
/// level caches of 1 and 2 MiB; `bench/README.md`).
const CACHED_BYTES: usize = 2 << 20;
/// Small samples: more in flight bring nothing.
const MOST_CACHED: usize = 1024;
/// Fewest slots: both directions and both ends have work.
const LEAST: usize = 4;

/// Slots in use of a connection: of `granted`, with `stride` bytes each. `works_on` samples is what
/// the engine works on at once, 0 where it does not say; `sharing` connections lead to it.
fn in_use(granted: usize, stride: usize, works_on: u64, sharing: usize) -> usize {
    if works_on == 0 {
        return granted;
    }
    let batches = works_on
        .saturating_mul(BATCHES)
        .div_ceil(sharing.max(1) as u64);
    (CACHED_BYTES / stride.max(1))
        .clamp(LEAST, MOST_CACHED)
        .max(usize::try_from(batches).unwrap_or(usize::MAX))
        .min(granted)
}

/// See the module.
pub(super) struct Limits {
    /// Connections whose `slots` the configuration leaves open.
    auto: Box<[bool]>,
    /// Samples that each accelerator's engine works on at once; 0 where it does not say.
    works_on: Box<[AtomicU64]>,
    /// One thread computes at a time, so that the last change counts.
    computing: Mutex<()>,
}

impl Dispatcher {
    /// From now on limits the slots in use of the connections that are true in `auto`. The first
    /// call counts.
    pub fn limit_slots(&self, auto: &[bool]) {
        let s = &*self.shared;
        let peers = s.connections.iter().map(|c| c.cfgs.peer + 1).max();
        let _ = s.limits.set(Limits {
            auto: auto.into(),
            works_on: (0..peers.unwrap_or(0)).map(|_| AtomicU64::new(0)).collect(),
            computing: Mutex::default(),
        });
    }

    /// A peer's engine works on so many samples at once; 0: it does not say.
    pub fn engine_works_on(&self, peer: usize, samples: u64) {
        let s = &*self.shared;
        if let Some(works_on) = s.limits.get().and_then(|l| l.works_on.get(peer)) {
            works_on.store(samples, Ordering::SeqCst);
            s.connections_changed();
        }
    }
}

impl Shared {
    /// Connections came or went, or an accelerator did: computes the slots in use of each.
    pub(super) fn connections_changed(&self) {
        let Some(limits) = self.limits.get() else {
            return;
        };
        let computing = limits.computing.lock();
        let _computing = computing.unwrap_or_else(PoisonError::into_inner);
        // Under a policy by health all samples may go by the connections of one NIC.
        let by_nic = self.arbiter.policy().by_health().is_some();
        let place = |i: usize| {
            let c = &self.connections[i].cfgs;
            (c.peer, if by_nic { c.nic_index } else { 0 })
        };
        let is_up = |i: &usize| self.connections[*i].up.load(Ordering::SeqCst);
        let up = (0..self.connections.len()).filter(is_up);
        let up: Vec<_> = up.map(place).collect();
        let mut more = false;
        for (i, connection) in self.connections.iter().enumerate() {
            if limits.auto.get(i) != Some(&true) {
                continue;
            }
            let c = &connection.cfgs;
            let sharing = up.iter().filter(|p| **p == place(i)).count();
            let works_on = limits.works_on.get(c.peer);
            let works_on = works_on.map_or(0, |n| n.load(Ordering::SeqCst));
            let before = connection.tracker.allowance();
            let slots = in_use(c.slots, c.request_stride, works_on, sharing);
            connection.tracker.allow(slots);
            more |= slots > before;
        }
        if more && self.has_backlog() {
            // NIC threads that found no room sleep.
            self.wake_all();
        }
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_in_use_follow_the_rule() {
        // Small samples: 1,024; images: 13; large ones: 4; all of what is granted, if that is less.
        assert_eq!(in_use(8192, 64, 1, 1), 1024);
        assert_eq!(in_use(8192, 4_608, 1, 1), 455);
        assert_eq!(in_use(400, 150_528, 1, 2), 13);
        assert_eq!(in_use(400, 10 << 20, 1, 2), 4);
        assert_eq!(in_use(2, 150_528, 1, 2), 2);
        // Three times what the engine works on, shared by its connections.
        assert_eq!(in_use(8192, 150_528, 1000, 1), 3000);
        assert_eq!(in_use(8192, 150_528, 1000, 4), 750);
        assert_eq!(in_use(8192, 150_528, 1000, 0), 3000);
        assert_eq!(in_use(400, 150_528, u64::MAX, 1), 400);
        // An engine that does not say.
        assert_eq!(in_use(400, 150_528, 0, 4), 400);
    }
}
