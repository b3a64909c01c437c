//! Number of slots in use per connection, computed from the number of samples that the
//! accelerator's engine works on at once.
//!
//! Memory is granted for many slots. More samples in flight than needed only wait in queues, and
//! their memory leaves the caches. So a connection uses only its first slots
//! ([`Tracker::allow`](crate::connection::tracker::Tracker::allow)). [`in_use`] returns their
//! number, which changes when a connection or an accelerator comes or goes, never with the rate.
//!
//! A connection to an accelerator that takes no samples ([`Standing`]) uses no slot: it has no room
//! for the arbiter, and posts nothing from the backlog.

use std::sync::{
    Mutex,
    atomic::{AtomicU8, AtomicU64, Ordering, fence},
};

use super::{Attempt, DispatchState, Dispatcher, NEW};
use crate::wire::Standing;
use fabric::os::lock;
use record::NodeRole;

/// Batches in flight: one outbound, one computing, one inbound.
const BATCHES: u64 = 3;
/// Bytes of samples in flight that a core's caches hold, per connection (measured with L2 caches of
/// 1 and 2 MiB; `bench/README.md`).
const CACHED_BYTES: usize = 2 << 20;
/// Most slots for small samples: more slots do not raise the rate.
const CACHED_SLOTS_MAX: usize = 1024;
/// Fewest slots: enough to keep both directions and both ends busy.
const SLOTS_MIN: usize = 4;

/// Slots in use of a connection that has `granted` slots of `stride` bytes. The engine works on
/// `works_on` samples at once, 0 if unknown; `sharing` connections feed the engine.
fn in_use(granted: usize, stride: usize, works_on: u64, sharing: usize) -> usize {
    if works_on == 0 {
        return granted;
    }
    let batches = works_on
        .saturating_mul(BATCHES)
        .div_ceil(sharing.max(1) as u64);
    (CACHED_BYTES / stride.max(1))
        .clamp(SLOTS_MIN, CACHED_SLOTS_MAX)
        .max(usize::try_from(batches).unwrap_or(usize::MAX))
        .min(granted)
}

/// As [`in_use`], of a decode node: no sample waits there, where the age of its handle is unknown.
fn in_use_with_handles(granted: usize, works_on: u64, sharing: usize) -> usize {
    match works_on.div_ceil(sharing.max(1) as u64) {
        0 => granted,
        each => granted.min(usize::try_from(each).unwrap_or(usize::MAX)),
    }
}

/// [`Standing`] as numbers, for the atomics of [`SlotLimits::standing`].
const TAKES: u8 = 0;
const BUSY: u8 = 1;
const AWAY: u8 = 2;

/// Limits of the slots in use.
pub(super) struct SlotLimits {
    /// Per connection: whether it has `slots: auto`.
    auto: Box<[bool]>,
    /// Per accelerator: samples that its engine works on at once; 0 where unknown.
    works_on: Box<[AtomicU64]>,
    /// Per accelerator: whether it takes samples.
    standing: Box<[AtomicU8]>,
    /// Serializes calls of `connections_changed`, so that the last change is in effect.
    computing: Mutex<()>,
}

impl Dispatcher {
    /// Limits the slots in use of each connection with `auto` true. Only the first call counts.
    pub fn limit_slots(&self, auto: &[bool]) {
        let s = &*self.shared;
        let peers = s.connections.iter().map(|c| c.cfgs.peer + 1).max();
        let peers = 0..peers.unwrap_or(0);
        let _ = s.limits.set(SlotLimits {
            auto: auto.into(),
            works_on: peers.clone().map(|_| AtomicU64::new(0)).collect(),
            standing: peers.map(|_| AtomicU8::new(TAKES)).collect(),
            computing: Mutex::default(),
        });
    }

    /// Sets the number of samples that a peer's engine works on at once; 0 where unknown.
    pub fn engine_works_on(&self, peer: usize, samples: u64) {
        let s = &*self.shared;
        if let Some(works_on) = s.limits.get().and_then(|l| l.works_on.get(peer)) {
            works_on.store(samples, Ordering::SeqCst);
            s.connections_changed();
        }
    }

    /// Records whether a peer's engine takes samples, from a heartbeat.
    pub fn set_standing(&self, peer: usize, standing: &Standing) {
        self.shared.note_standing(peer, standing);
    }
}

impl DispatchState {
    /// Records whether a peer's engine takes samples.
    pub(super) fn note_standing(&self, peer: usize, standing: &Standing) {
        let now = match standing {
            Standing::Takes => TAKES,
            Standing::Busy => BUSY,
            Standing::Away(_) | Standing::Overdue(_) => AWAY,
        };
        let known = self.limits.get().and_then(|l| l.standing.get(peer));
        if known.is_some_and(|known| known.swap(now, Ordering::SeqCst) != now) {
            self.connections_changed();
        }
    }

    /// Whether a connection's accelerator takes no samples for now.
    pub(super) fn is_away(&self, connection: usize) -> bool {
        let peer = self.connections[connection].cfgs.peer;
        let known = self.limits.get().and_then(|l| l.standing.get(peer));
        known.is_some_and(|known| known.load(Ordering::SeqCst) == AWAY)
    }

    /// Retries a refused sample from the backlog, once a connection has room.
    pub(super) fn retry_later(&self, attempt: Attempt) {
        self.backlogs[NEW].push(std::iter::once(attempt));
        self.look_again(attempt.sample.id);
        // Either `connections_changed` sees the sample, or this thread the slots that it allows.
        drop(self.limits.get().map(|limits| lock(&limits.computing)));
        if self.free_slots(1) > 0 {
            self.wake_all();
        }
    }

    /// Sets the slots in use after a connection or an accelerator came or went, or the standing of
    /// an accelerator changed.
    pub(super) fn connections_changed(&self) {
        let Some(limits) = self.limits.get() else {
            return;
        };
        let _computing = lock(&limits.computing);
        // Under a policy by health, the connections of one NIC may carry all samples.
        let by_nic = self.choice.is_by_health();
        let place = |i: usize| {
            let c = &self.connections[i].cfgs;
            (c.peer, if by_nic { c.nic_index } else { 0 })
        };
        let is_up = |i: &usize| self.connections[*i].up.load(Ordering::SeqCst);
        let up = (0..self.connections.len()).filter(is_up);
        let up: Vec<_> = up.map(place).collect();
        let standing = |peer: usize| limits.standing[peer].load(Ordering::SeqCst);
        // Samples wait at a busy accelerator where no other of its role takes them.
        let any_takes = |role: NodeRole| {
            let mut all = self.connections.iter().enumerate();
            all.any(|(i, c)| c.cfgs.role == role && is_up(&i) && standing(c.cfgs.peer) == TAKES)
        };
        let mut more = false;
        for (i, connection) in self.connections.iter().enumerate() {
            let c = &connection.cfgs;
            let before = connection.tracker.allowance();
            let standing = standing(c.peer);
            if standing == AWAY || (standing == BUSY && any_takes(c.role)) {
                connection.tracker.allow(0);
                // A thread that fills the ring from here on sees the connection closed.
                fence(Ordering::SeqCst);
                more |= !connection.ring.is_empty();
                self.requeue_ring(connection);
                continue;
            }
            if limits.auto.get(i) != Some(&true) {
                connection.tracker.allow(c.slots);
                more |= before == 0;
                continue;
            }
            let sharing = up.iter().filter(|p| **p == place(i)).count();
            let works_on = limits.works_on.get(c.peer);
            let works_on = works_on.map_or(0, |n| n.load(Ordering::SeqCst));
            let slots = match c.role {
                NodeRole::Decode => in_use_with_handles(c.slots, works_on, sharing),
                _ => in_use(c.slots, c.request_stride, works_on, sharing),
            };
            connection.tracker.allow(slots);
            more |= slots > before;
        }
        if more && self.backlogs.iter().any(|b| !b.is_empty()) {
            // Wakes NIC threads that sleep because no slot was free, or no sample waited.
            self.wake_all();
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn slots_in_use_follow_the_rule() {
        // Small samples: 1,024; images: 13; large samples: 4; never more than granted.
        assert_eq!(in_use(8192, 64, 1, 1), 1024);
        assert_eq!(in_use(8192, 4_608, 1, 1), 455);
        assert_eq!(in_use(400, 150_528, 1, 2), 13);
        assert_eq!(in_use(400, 10 << 20, 1, 2), 4);
        assert_eq!(in_use(2, 150_528, 1, 2), 2);
        // Three times the engine's samples, divided among its connections.
        assert_eq!(in_use(8192, 150_528, 1000, 1), 3000);
        assert_eq!(in_use(8192, 150_528, 1000, 4), 750);
        assert_eq!(in_use(8192, 150_528, 1000, 0), 3000);
        assert_eq!(in_use(400, 150_528, u64::MAX, 1), 400);
        // An engine that does not state its number.
        assert_eq!(in_use(400, 150_528, 0, 4), 400);
    }
}
