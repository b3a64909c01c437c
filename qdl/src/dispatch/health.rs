//! Dispatch under a policy by health, with [`RailArbiter`].
//!
//! ```text
//!   issue --> assign: pick a rail, one of its connections --> that connection's queue --> posted
//!         \-> no connection has room --> backlog --> distribute, when slots come free --/
//! ```
//!
//! The arbiter picks a rail before the post, so the sample's bytes load the rail from the decision
//! on. The sample then lies in the connection's ring. `posting` decides which thread posts the
//! ring, once per call and connection. Each pick ends in one `RailArbiter::complete` when the
//! answer has come, or in one `take_back`: the post failed, the connection was lost, or the rail
//! became congested before the post.
//!
//! One thread at a time distributes the backlog ([`SendToken`]). It keeps a sample that finds no
//! room instead of putting the sample back, which preserves the order. No connection takes samples
//! from the backlog by itself: a sample waits rather than use a congested rail.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

use super::{Connection, DispatchEvent, Sample, Shared, posting::Burst};
use crate::{
    connection::token::SendToken,
    rails::{Change, RailArbiter, RailState},
};
use fabric::clock::now_ns;

thread_local! {
    /// Per connection: its index, the burst that a call gave to it, and whether it was idle before.
    static BURSTS: Cell<Vec<(usize, Burst, bool)>> = const { Cell::new(Vec::new()) };
}

/// Returns whether the link of a local NIC, by index, is down; `None` without a report.
pub type NicDown = dyn Fn(usize) -> Option<bool> + Send + Sync;

pub(super) struct Health {
    pub arbiter: RailArbiter,
    /// Token of the thread that distributes the backlog, with the sample that found no room.
    distributor: SendToken<Option<Sample>>,
    pub next_tick_ns: AtomicU64,
    tick_ns: u64,
    nic_down: Box<NicDown>,
    /// Per peer: whether the control session is lost.
    control_lost: Box<[AtomicBool]>,
}

impl Health {
    pub(crate) fn new(
        arbiter: RailArbiter,
        peers: usize,
        tick_ns: u64,
        nic_down: Box<NicDown>,
    ) -> Self {
        Health {
            arbiter,
            distributor: SendToken::new(None),
            next_tick_ns: AtomicU64::new(0),
            tick_ns,
            nic_down,
            control_lost: (0..peers).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    pub(crate) fn control(&self, peer: usize, lost: bool) {
        if let Some(c) = self.control_lost.get(peer) {
            c.store(lost, Ordering::Relaxed);
        }
    }
}

impl Shared {
    /// Puts a sample into a connection's ring. Returns the connection's index and whether the
    /// connection was idle, or `None` if no connection has room.
    fn assign(&self, h: &Health, now: u64, sample: &Sample) -> Option<(usize, bool)> {
        self.assign_to(h, now, sample, |_| true)
    }

    /// As [`Self::assign`], among the connections that `may` admits.
    pub(super) fn assign_to(
        &self,
        h: &Health,
        now: u64,
        sample: &Sample,
        may: impl Fn(&Connection) -> bool,
    ) -> Option<(usize, bool)> {
        let load = |i: usize| self.connections[i].load_if(&may);
        let index = h.arbiter.pick(now, sample.len, load)?;
        let connection = &self.connections[index];
        let is_idle = connection.is_idle();
        if connection.ring.push(*sample).is_err() {
            // Other threads have filled the ring since the pick.
            h.arbiter.take_back(index, sample.len);
            return None;
        }
        // Either this thread sees the connection down, or its NIC thread sees the sample.
        fence(Ordering::SeqCst);
        if !connection.up.load(Ordering::SeqCst) {
            self.empty_ring(connection);
        }
        Some((index, is_idle))
    }

    /// [`super::Dispatcher::issue`] under a policy by health.
    pub(super) fn issue_by_health(&self, h: &Health, samples: &[Sample]) {
        let now = now_ns();
        let mut given = 0;
        if !self.has_backlog() {
            let mut bursts = BURSTS.take();
            for sample in samples {
                let Some((connection, is_idle)) = self.assign(h, now, sample) else {
                    break;
                };
                match bursts.iter_mut().find(|(c, ..)| *c == connection) {
                    Some((_, burst, _)) => burst.add(sample),
                    None => bursts.push((connection, Burst::of(sample), is_idle)),
                }
                given += 1;
            }
            for (connection, burst, is_idle) in bursts.drain(..) {
                self.post_or_leave(&self.connections[connection], burst, is_idle);
            }
            BURSTS.set(bursts);
        }
        if given < samples.len() {
            self.leave_to_others(samples[given..].iter().copied());
        }
        if self.has_backlog() {
            self.distribute(h);
        }
    }

    /// Gives the backlog's samples to connections with room, and wakes their NIC threads.
    pub(super) fn distribute(&self, h: &Health) {
        // The thread that gets the token sees the slots that were freed before this call.
        fence(Ordering::SeqCst);
        let mut gave = false;
        let mut claim = h.distributor.claim();
        while let Some(mut held) = claim.next() {
            while let Some(sample) = held.take().or_else(|| self.backlog.pop()) {
                if self.aborted.load(Ordering::SeqCst) {
                    self.count_off(1);
                    self.complete_empty(&[sample]);
                } else if self.assign(h, now_ns(), &sample).is_some() {
                    self.count_off(1);
                    gave = true;
                } else {
                    *held = Some(sample);
                    break;
                }
            }
        }
        if gave {
            // The connection's NIC thread posts the ring.
            for connection in self.connections.iter().filter(|c| !c.ring.is_empty()) {
                let thread = self.handles().get(connection.share);
                thread.inspect(|t| t.wake());
            }
        }
    }

    pub(super) fn health_up(&self, connection: usize) {
        if let Some(h) = self.health.get() {
            let mut changes = Vec::new();
            h.arbiter
                .connection_up(now_ns(), connection, &mut |c| changes.push(c));
            self.tell(h, self.connections[connection].cfgs.peer, &changes);
        }
    }

    /// Reports a lost connection, whose samples are already in the backlog, to the arbiter.
    pub(super) fn health_lost(&self, connection: &Connection) {
        if let Some(h) = self.health.get() {
            let (peer, mut changes) = (connection.cfgs.peer, Vec::new());
            let control = h.control_lost.get(peer);
            h.arbiter.connection_lost(
                now_ns(),
                connection.index,
                (h.nic_down)(connection.cfgs.nic_index),
                control.is_some_and(|c| c.load(Ordering::Relaxed)),
                &mut |c| changes.push(c),
            );
            self.tell(h, peer, &changes);
            self.distribute(h);
        }
    }

    /// Folds the measurements into the scores when a fold is due. One NIC thread folds per tick.
    pub(super) fn health_tick(&self, now: u64) {
        let Some(h) = self.health.get() else { return };
        let due = h.next_tick_ns.load(Ordering::Relaxed);
        // Check first: an early call must not postpone the next fold.
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
                for connection in h.arbiter.connections_of(peer, change.rail) {
                    self.empty_ring(&self.connections[connection]);
                }
            }
            self.owner.event(DispatchEvent::Rail {
                peer,
                change: *change,
            });
        }
        // A rail came or went, so a waiting sample may now find room.
        if !changes.is_empty() && self.has_backlog() {
            self.distribute(h);
        }
    }
}
