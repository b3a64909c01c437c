//! Keeps in flight what is needed: the [`Controller`] of [`allowance`](super::allowance) beside the
//! NIC threads, of which whichever comes by looks.

use std::sync::{
    Mutex, PoisonError, TryLockError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crossbeam_utils::CachePadded;

use super::{
    Dispatcher, Shared,
    allowance::{Controller, LOOK_NS, Look, at_step, least, steps},
};
use crate::{clock::now_ns, os::core_cache_bytes};

/// See the module.
pub(super) struct ByNeed {
    /// Connections whose allowance is chosen here; the others have all their slots.
    auto: Box<[bool]>,
    /// What the engine of each peer works on at once; 0 where it does not say.
    at_once: Box<[AtomicU64]>,
    /// Bytes of a core's own cache, where the system says.
    cache: Option<usize>,
    /// When somebody is to look next. Read in every turn that finds something.
    next_look_ns: CachePadded<AtomicU64>,
    /// Connections came or went, or a peer has another engine.
    changed: AtomicBool,
    looking: Mutex<Looking>,
}

struct Looking {
    controller: Controller,
    /// Least allowance of each connection.
    least: Box<[usize]>,
    step: u8,
    /// All allowances together.
    allowed: usize,
}

impl Dispatcher {
    /// From now on keeps in flight, on the connections that are named true in `auto`, what the way
    /// and the engines need; before it, what there are slots for. The first call counts.
    pub fn in_flight_by_need(&self, auto: &[bool]) {
        let s = &*self.shared;
        let peers = s.connections.iter().map(|c| c.cfgs.peer + 1).max();
        let need = ByNeed {
            auto: auto.into(),
            at_once: (0..peers.unwrap_or(0)).map(|_| AtomicU64::new(0)).collect(),
            cache: core_cache_bytes(),
            next_look_ns: CachePadded::default(),
            changed: AtomicBool::new(true),
            looking: Mutex::new(Looking {
                controller: Controller::new(0),
                least: s.connections.iter().map(|c| c.cfgs.slots).collect(),
                step: 0,
                allowed: usize::MAX,
            }),
        };
        let _ = s.need.set(need);
    }

    /// What the engine of a peer works on at once, as it says; 0 where it does not, which leaves
    /// its connections all their slots. After [`Self::in_flight_by_need`].
    pub fn engine_works_on(&self, peer: usize, samples: u64) {
        let Some(need) = self.shared.need.get() else {
            return;
        };
        if let Some(at_once) = need.at_once.get(peer) {
            at_once.store(samples, Ordering::Relaxed);
            self.shared.connections_changed();
            self.shared.look_at_need();
        }
    }
}

impl Shared {
    /// Connections came or went: what each is to have in flight is another share.
    pub(super) fn connections_changed(&self) {
        if let Some(need) = self.need.get() {
            need.changed.store(true, Ordering::SeqCst);
            need.next_look_ns.store(0, Ordering::SeqCst);
        }
    }

    /// Whether it is time to look at what is needed: one load.
    pub(super) fn need_is_due(&self, now: u64) -> bool {
        let need = self.need.get();
        need.is_some_and(|n| now >= n.next_look_ns.load(Ordering::Relaxed))
    }

    /// Looks, where nobody else does. True where there is more room than before.
    pub(super) fn look_at_need(&self) -> bool {
        let Some(need) = self.need.get() else {
            return false;
        };
        let mut looking = match need.looking.try_lock() {
            Ok(looking) => looking,
            Err(TryLockError::Poisoned(p)) => PoisonError::into_inner(p),
            Err(TryLockError::WouldBlock) => return false,
        };
        let now_ns = now_ns();
        let next = now_ns + LOOK_NS;
        need.next_look_ns.store(next, Ordering::Relaxed);
        let changed = need.changed.swap(false, Ordering::SeqCst);
        if changed {
            self.share_out(need, &mut looking);
        }
        let completed: u64 = self
            .completed
            .iter()
            .map(|c| c.load(Ordering::Relaxed))
            .sum();
        let done = completed + self.completed_empty.load(Ordering::Relaxed);
        let waiting = self.backlog_len.load(Ordering::Relaxed);
        let issued = self.issued.load(Ordering::Relaxed);
        let step = looking.controller.look(&Look {
            now_ns,
            completed,
            in_flight: issued.saturating_sub(done).saturating_sub(waiting),
            waiting: waiting > 0,
        });
        if step != looking.step || changed {
            looking.step = step;
            let each = self.connections.iter().zip(&looking.least);
            for ((connection, least), auto) in each.zip(&need.auto) {
                if *auto {
                    let allowed = at_step(*least, connection.cfgs.slots, step);
                    connection.tracker.allow(allowed);
                }
            }
            let allowed = self.connections.iter().map(|c| c.tracker.allowance());
            let before = std::mem::replace(&mut looking.allowed, allowed.sum());
            let more = looking.allowed > before;
            if more && waiting > 0 {
                // Those that found no room, and sleep over it.
                self.wake_all();
            }
            return more;
        }
        false
    }

    /// Gives each connection its share of what its engine works on at once.
    fn share_out(&self, need: &ByNeed, looking: &mut Looking) {
        // Under a policy by health all may go by one NIC.
        let by_nic = self.arbiter.policy().by_health().is_some();
        let place = |i: usize| {
            let c = &self.connections[i].cfgs;
            (c.peer, if by_nic { c.nic_index } else { 0 })
        };
        let mut up: Vec<_> = (0..self.connections.len())
            .filter(|i| self.connections[*i].up.load(Ordering::SeqCst))
            .map(place)
            .collect();
        up.sort_unstable();
        let mut most = 0;
        for (i, connection) in self.connections.iter().enumerate() {
            let (place, c) = (place(i), &connection.cfgs);
            let sharing = up.partition_point(|p| *p <= place) - up.partition_point(|p| *p < place);
            let at_once = need.at_once.get(c.peer);
            let at_once = at_once.map_or(0, |n| n.load(Ordering::Relaxed));
            let share = at_once.div_ceil(sharing.max(1) as u64);
            let share = (at_once > 0).then_some(share);
            let own = least(c.slots, c.request_stride, share, need.cache);
            looking.least[i] = own;
            if need.auto.get(i) == Some(&true) {
                most = most.max(steps(own, c.slots));
            }
        }
        looking.controller.steps_changed(most);
    }
}
