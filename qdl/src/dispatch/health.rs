//! Choosing by health: what the dispatcher does where the policy is one of [`RailArbiter`]'s.
//!
//! ```text
//!   issue --> assign: pick a rail, one of its lanes --> the lane's queue --> whoever drives the lane posts it
//!         \-> no lane has room --> backlog --> distribute, when slots come free --/
//! ```
//!
//! A sample is picked for before it is posted, so that bytes count against a rail from the decision on. From
//! then on it belongs to its lane, and only what drives that lane posts it: the issuing thread if it is small,
//! the lane's rail thread if the kernel's copy is the cost. Every pick ends in exactly one `completed` or `taken_back`:
//! the sample is answered, or could not be posted, or its lane was lost or its rail is congested before it was posted.
//!
//! The backlog is handed out by whoever comes by, one at a time ([`Driven`]): a sample for which there is no room is
//! held, not put back, so that samples keep their order. A lane never draws from the backlog by itself: a sample
//! waits rather than go by a rail that is congested.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use super::{DispatchEvent, Lane, Sample, Shared};
use crate::{
    clock::now_ns,
    connection::token::Driven,
    rails::{Change, RailArbiter, RailState},
};

/// Asks whether a NIC of this node, by its index, says of itself that it is down; `None` where it cannot be asked.
pub type NicDown = dyn Fn(usize) -> Option<bool> + Send + Sync;

/// What choosing by health takes.
pub(super) struct Health {
    pub arbiter: RailArbiter,
    /// The sample of the backlog that there was no room for.
    turn: Driven<Option<Sample>>,
    pub next_tick_ns: AtomicU64,
    tick_ns: u64,
    nic_down: Box<NicDown>,
    /// The control session with each peer is lost.
    control_lost: Box<[AtomicBool]>,
}

impl Health {
    pub fn new(arbiter: RailArbiter, peers: usize, tick_ns: u64, nic_down: Box<NicDown>) -> Self {
        Health {
            arbiter,
            turn: Driven::new(None),
            next_tick_ns: AtomicU64::new(0),
            tick_ns,
            nic_down,
            control_lost: (0..peers).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    pub fn control(&self, peer: usize, lost: bool) {
        if let Some(c) = self.control_lost.get(peer) {
            c.store(lost, Ordering::Relaxed);
        }
    }
}

impl Shared {
    /// Gives a sample to a lane; `None` when none has room.
    fn assign(&self, h: &Health, now: u64, sample: &Sample) -> Option<usize> {
        let load = |i: usize| self.lanes[i].load();
        let index = h.arbiter.pick(now, sample.len, load)?;
        let lane = &self.lanes[index];
        let queue = lane.assigned.as_ref()?;
        if queue.push(*sample).is_err() {
            // Others filled it since the look.
            h.arbiter.taken_back(index, sample.len);
            return None;
        }
        // Either the lane is seen to be down here, or whoever takes it down sees the sample.
        fence(Ordering::SeqCst);
        if !lane.up.load(Ordering::SeqCst) {
            self.take_assigned_back(h, lane);
        }
        Some(index)
    }

    /// Takes back what was given to a lane and not posted. Returns how many samples that were.
    pub(super) fn take_assigned_back(&self, h: &Health, lane: &Lane) -> usize {
        let Some(queue) = &lane.assigned else {
            return 0;
        };
        let mut n = 0;
        while let Some(sample) = queue.pop() {
            h.arbiter.taken_back(lane.index, sample.len);
            self.push_all(std::iter::once(sample));
            n += 1;
        }
        n
    }

    /// [`super::Dispatcher::issue`] by health. `small` samples are posted here, others by the rail threads.
    pub(super) fn issue_by_health(&self, h: &Health, samples: &[Sample], small: bool) {
        let now = now_ns();
        let mut left = samples.iter();
        let mut last = None;
        if self.backlog_len.load(Ordering::SeqCst) == 0 {
            for sample in left.by_ref() {
                let lane = self.assign(h, now, sample);
                if lane.is_none() {
                    self.push_all(std::iter::once(*sample));
                    break;
                }
                last = lane;
            }
        }
        if left.len() > 0 {
            self.push_all(left.copied());
        }
        match last {
            Some(lane) if samples.len() == 1 => self.kick(&self.lanes[lane], small),
            _ => self.kick_all(small),
        }
        if self.has_backlog() {
            self.distribute(h, small);
        }
    }

    /// Gives out what waits in the backlog, as far as there is room, and sees that it is posted.
    pub(super) fn distribute(&self, h: &Health, small: bool) {
        // Slots that came free before are seen by the owner of the turn, or by us.
        fence(Ordering::SeqCst);
        let mut gave = false;
        h.turn.drive(|held| {
            loop {
                let Some(sample) = held.take().or_else(|| self.backlog.pop()) else {
                    return;
                };
                if self.aborted.load(Ordering::SeqCst) {
                    self.backlog_len.fetch_sub(1, Ordering::SeqCst);
                    self.complete_empty(&[sample]);
                } else if self.assign(h, now_ns(), &sample).is_some() {
                    self.backlog_len.fetch_sub(1, Ordering::SeqCst);
                    gave = true;
                } else {
                    *held = Some(sample);
                    return;
                }
            }
        });
        if gave {
            self.kick_all(small);
        }
    }

    /// Sees that what was given to a lane is posted.
    fn kick(&self, lane: &Lane, small: bool) {
        if small {
            self.drive(lane, false, || None);
        } else {
            self.handles()[lane.cfgs.rail].wake();
        }
    }

    fn kick_all(&self, small: bool) {
        for lane in self.lanes.iter().filter(|l| l.assigned() > 0) {
            self.kick(lane, small);
        }
    }

    /// A lane has come up.
    pub(super) fn health_up(&self, lane: usize) {
        if let Some(h) = self.health.get() {
            let mut changes = Vec::new();
            h.arbiter.lane_up(now_ns(), lane, &mut |c| changes.push(c));
            self.tell(h, self.lanes[lane].cfgs.peer, &changes);
        }
    }

    /// A lane was lost, and its samples are in the backlog.
    pub(super) fn health_lost(&self, lane: &Lane) {
        if let Some(h) = self.health.get() {
            let (peer, mut changes) = (lane.cfgs.peer, Vec::new());
            let control = h.control_lost.get(peer);
            h.arbiter.lane_lost(
                now_ns(),
                lane.index,
                (h.nic_down)(lane.cfgs.rail),
                control.is_some_and(|c| c.load(Ordering::Relaxed)),
                &mut |c| changes.push(c),
            );
            self.tell(h, peer, &changes);
            self.distribute(h, false);
        }
    }

    /// Folds what was measured into the scores, where it is time: one of the rail threads does.
    pub(super) fn health_tick(&self, now: u64) {
        let Some(h) = self.health.get() else { return };
        let due = h.next_tick_ns.load(Ordering::Relaxed);
        // First: a look that is too early must not put the next fold off.
        if now < due {
            return;
        }
        let next = now.saturating_add(h.tick_ns);
        let mine = h
            .next_tick_ns
            .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed);
        if mine.is_err() {
            return;
        }
        let mut changes: Vec<(usize, Change)> = Vec::new();
        h.arbiter.tick(now, &mut |p, c| changes.push((p, c)));
        for (peer, change) in &changes {
            self.tell(h, *peer, &[*change]);
        }
    }

    fn tell(&self, h: &Health, peer: usize, changes: &[Change]) {
        for change in changes {
            if matches!(change.to, RailState::Congested) {
                for lane in h.arbiter.lanes_of(peer, change.rail) {
                    self.take_assigned_back(h, &self.lanes[lane]);
                }
            }
            self.owner.event(DispatchEvent::Rail {
                peer,
                change: *change,
            });
        }
        // A rail more, or one less: either way there may be another choice now.
        if !changes.is_empty() && self.has_backlog() {
            self.distribute(h, false);
        }
    }
}
