//! Choice of connections: by their load, or by the rails' health.
//!
//! ```text
//!   pick --> a connection's ring --> posted --> answered: done
//!                              \-> lost, or not posted: undo
//! ```
//!
//! By health, the arbiter chooses a rail for each sample before the post, so the sample's bytes
//! load the rail from the decision on. Each [`Choice::pick`] ends in one [`Choice::done`], or in
//! one [`Choice::undo`]: the post failed, the connection was lost, or the rail became congested
//! before the post. No connection takes samples from the backlog by itself: a sample waits rather
//! than use a congested rail. One thread at a time distributes the backlog ([`SendToken`]). It
//! keeps a sample that finds no room instead of putting the sample back, which preserves the order.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
};

use crossbeam_utils::CachePadded;
use record::NodeRole;

use super::{
    Attempt, Connection, DispatchEvent, DispatchState, Dispatcher, NEW, Sample, connection::BURST,
    posting::samples_of_burst,
};
use crate::{
    connection::token::SendToken,
    rails::{Arbiter, Change, Policy, RailArbiter, RailId, RailReport, RailState, Score},
};
use fabric::clock::now_ns;

/// Returns whether the link of a local NIC, by index, is down; `None` without a report.
pub type NicDown = dyn Fn(usize) -> Option<bool> + Send + Sync;

/// Weight of a peer's work against a connection's samples in flight: its samples, or, on a prefill
/// node, the bytes of their prompts.
const PEER: usize = 1 << 20;

/// The policy of a dispatcher. Any thread may call it.
pub(super) struct Choice {
    by_load: Arbiter,
    /// Per peer: the connection that got the last burst. Its NIC threads are awake.
    last_of_peer: Box<[CachePadded<AtomicUsize>]>,
    /// Per peer: its connections, where their samples in flight count together; else empty.
    of_peer: Box<[Box<[usize]>]>,
    /// Set once the peers have described their connections, under a policy by health.
    health: OnceLock<Health>,
}

pub(super) struct Health {
    arbiter: RailArbiter,
    /// Token of the thread that distributes the backlog, with the sample that found no room.
    distributor: SendToken<Option<Attempt>>,
    pub next_tick_ns: AtomicU64,
    tick_ns: u64,
    nic_down: Box<NicDown>,
    /// Per peer: whether the control session is lost.
    control_lost: Box<[AtomicBool]>,
}

impl Choice {
    pub(crate) fn new(policy: Policy, by_peer: bool, connections: &[Connection]) -> Self {
        let peers = connections.iter().map(|c| c.cfgs.peer + 1).max();
        let of_peer = |peer| {
            let all = connections.iter().enumerate();
            let of_it = all.filter(|(_, c)| c.cfgs.peer == peer);
            of_it.map(|(i, _)| i).collect()
        };
        // With a last burst on another peer's connection, a peer would seem loaded.
        let first = |peer| connections.iter().position(|c| c.cfgs.peer == peer);
        let last = |peer| CachePadded::new(AtomicUsize::new(first(peer).unwrap_or(0)));
        Choice {
            by_load: Arbiter::new(policy),
            last_of_peer: (0..peers.unwrap_or(0)).map(last).collect(),
            of_peer: match by_peer {
                true => (0..peers.unwrap_or(0)).map(of_peer).collect(),
                false => Box::default(),
            },
            health: OnceLock::new(),
        }
    }

    pub(crate) fn is_by_health(&self) -> bool {
        self.by_load.policy().is_by_health()
    }

    /// Most samples of one choice.
    pub(crate) fn samples_max(&self) -> usize {
        if self.is_by_health() { 1 } else { BURST }
    }

    pub(crate) fn health(&self) -> Option<&Health> {
        self.health.get()
    }

    /// Chooses a connection that `may` admits for a burst that begins with `sample`; `None` if none
    /// has room.
    pub(crate) fn pick(
        &self,
        connections: &[Connection],
        sample: &Sample,
        may: impl Fn(&Connection) -> bool,
    ) -> Option<usize> {
        if let Some(h) = self.health.get() {
            let load = |i: usize| connections[i].load_if(&may);
            return h.arbiter.pick(now_ns(), sample.len, load);
        }
        let advantage = samples_of_burst(sample.len);
        let last = |c: &Connection| &self.last_of_peer[c.cfgs.peer];
        let chosen = self.by_load.pick(connections.len(), |i| {
            let connection = &connections[i];
            let mut load = connection.load_if(&may);
            if load.takes()
                && let Some(all) = self.of_peer.get(connection.cfgs.peer)
            {
                let work = |i: &usize| match connection.cfgs.role {
                    NodeRole::Prefill => connections[*i].prompts.load(Ordering::Relaxed) as usize,
                    NodeRole::Both | NodeRole::Decode => connections[*i].load().in_flight,
                };
                let work = all.iter().map(work).sum::<usize>();
                load = load.with_more(work.saturating_mul(PEER));
            }
            match last(connection).load(Ordering::Relaxed) == i {
                true => load,
                false => load.with_more(advantage),
            }
        })?;
        let last = last(&connections[chosen]);
        if last.load(Ordering::Relaxed) != chosen {
            last.store(chosen, Ordering::Relaxed);
        }
        Some(chosen)
    }

    /// Takes back the choice of a sample of `len` bytes that was not posted or goes again.
    pub(crate) fn undo(&self, connection: &Connection, len: u32) {
        if let Some(h) = self.health.get() {
            h.arbiter.take_back(connection.index, len);
        }
    }

    /// Records the answers of one turn: connection, length of the sample, and network time in
    /// nanoseconds, that is round trip minus residence.
    pub(crate) fn done(&self, answers: impl Iterator<Item = (usize, u32, u64)>) {
        if let Some(h) = self.health.get() {
            answers.for_each(|(connection, len, ns)| h.arbiter.complete(connection, len, ns));
        }
    }

    /// Records the network time of a warm-up sample that was alone in flight, without a pick.
    pub(crate) fn observe_unloaded(&self, connection: usize, len: u32, network_ns: u64) {
        if let Some(h) = self.health.get() {
            h.arbiter.observe_unloaded(connection, len, network_ns);
        }
    }
}

impl Dispatcher {
    /// Switches to a policy by health; before this call, the number of outstanding samples decides.
    /// Measurements are folded into scores every `tick_ns`. `nic_down` returns whether a NIC is
    /// down. Only the first call has an effect.
    pub fn choose_by_health(&self, arbiter: RailArbiter, tick_ns: u64, nic_down: Box<NicDown>) {
        let shared = &*self.shared;
        let not_lost = |_: &_| AtomicBool::new(false);
        let _ = shared.choice.health.set(Health {
            arbiter,
            distributor: SendToken::new(None),
            next_tick_ns: AtomicU64::new(0),
            tick_ns,
            nic_down,
            control_lost: shared.choice.last_of_peer.iter().map(not_lost).collect(),
        });
        // Either a NIC thread that takes a connection up or down sees the arbiter, or this thread
        // sees the connection.
        fence(Ordering::SeqCst);
        for connection in &shared.connections {
            let is_up = || connection.up.load(Ordering::SeqCst);
            if is_up() {
                shared.rail_up(connection);
                if !is_up() {
                    shared.rail_lost(connection);
                }
            }
        }
    }

    /// Records whether the control session with a peer is lost. The arbiter uses this to locate the
    /// fault of a lost rail.
    pub(crate) fn control_session(&self, peer: usize, lost: bool) {
        let health = self.shared.choice.health();
        if let Some(c) = health.and_then(|h| h.control_lost.get(peer)) {
            c.store(lost, Ordering::Relaxed);
        }
    }

    /// Records the scores of a peer's interior and of its rails, from a heartbeat.
    pub(crate) fn put_scores(
        &self,
        peer: usize,
        interior: Score,
        rails: impl IntoIterator<Item = (RailId, Score)>,
    ) {
        if let Some(h) = self.shared.choice.health() {
            h.arbiter.set_peers_scores(peer, interior, rails);
        }
    }

    /// Report on each rail to a peer; empty unless the policy is by health.
    pub(crate) fn rail_report(&self, peer: usize) -> Vec<RailReport> {
        let health = self.shared.choice.health();
        health.map_or_else(Vec::new, |h| h.arbiter.report(peer))
    }
}

impl DispatchState {
    /// By health, gives the backlog's samples to connections with room. Their NIC threads post.
    pub(super) fn distribute(&self) {
        if self.assign_backlog() {
            let given = self.connections.iter().filter(|c| !c.ring.is_empty());
            given.for_each(|c| self.wake(c));
        }
    }

    /// As [`Self::distribute`], but leaves the posting to the caller. Returns whether it gave any.
    pub(super) fn assign_backlog(&self) -> bool {
        let Some(h) = self.choice.health() else {
            return false;
        };
        // Orders the slots freed before this call before the check of the backlog. The thread that
        // gets the token sees them too.
        fence(Ordering::SeqCst);
        // Roles and policies by health exclude each other.
        let backlog = &self.backlogs[NEW];
        if backlog.is_empty() {
            return false;
        }
        let mut gave = false;
        let mut claim = h.distributor.claim();
        while let Some(mut held) = claim.next() {
            while let Some(attempt) = held.take().or_else(|| backlog.pop()) {
                if self.is_aborted() {
                    backlog.count_off(1);
                    self.complete_empty(&[attempt.sample]);
                } else if self.end_if_cancelled(&attempt) {
                    backlog.count_off(1);
                } else if let Some((connection, _)) = self.enqueue(&attempt, |_| true) {
                    // Either this thread sees the connection down, or its NIC thread the sample.
                    fence(Ordering::SeqCst);
                    if !connection.is_open() {
                        self.requeue_ring(connection);
                    }
                    backlog.count_off(1);
                    gave = true;
                } else {
                    *held = Some(attempt);
                    break;
                }
            }
        }
        gave
    }

    /// Reports a connection that has come up to the arbiter by health.
    pub(super) fn rail_up(&self, connection: &Connection) {
        if let Some(h) = self.choice.health() {
            let mut changes = Vec::new();
            h.arbiter
                .connection_up(now_ns(), connection.index, &mut |c| changes.push(c));
            self.tell(h, connection.cfgs.peer, &changes);
        }
    }

    /// Reports a lost connection, whose samples are already in the backlog, to the arbiter.
    pub(super) fn rail_lost(&self, connection: &Connection) {
        if let Some(h) = self.choice.health() {
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
            self.distribute();
        }
    }

    /// Folds the measurements into the scores when a fold is due. One NIC thread folds per tick.
    pub(super) fn fold_scores(&self, now: u64) {
        let Some(h) = self.choice.health() else {
            return;
        };
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
                    self.requeue_ring(&self.connections[connection]);
                }
            }
            self.owner.event(DispatchEvent::Rail {
                peer,
                change: *change,
            });
        }
        // A rail came or went, so a waiting sample may now find room.
        if !changes.is_empty() {
            self.distribute();
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use super::*;
    use crate::dispatch::{ConnectionCfgs, DispatchCfgs};

    /// Nine nodes that run four sequences each, at these milliseconds a token.
    const MS: [u64; 9] = [1, 1, 2, 2, 4, 4, 8, 8, 16];

    /// Share of the nodes' rate with 36 requests of `len` bytes and 64 tokens in flight, which come
    /// one by one to nodes with `each` connections.
    fn share(by_peer: bool, each: usize, len: u32) -> f64 {
        let cfgs = |i| ConnectionCfgs {
            peer: i / each,
            role: NodeRole::Both,
            nic_index: 0,
            slots: 64,
            response_stride: 64,
            request_stride: 64,
        };
        let cfgs = DispatchCfgs {
            connections: (0..9 * each).map(cfgs).collect(),
            ..DispatchCfgs::default()
        };
        let made = (0..9 * each).map(|i| Connection::new(i, 0, &[], &cfgs).expect("memory"));
        let all: Vec<_> = made.collect();
        all.iter().for_each(|c| c.up.store(true, Ordering::SeqCst));
        let choice = Choice::new(Policy::LeastOutstanding, by_peer, &all);
        // By end and number; the queues have connections and slots.
        let (mut ends, mut number, mut now) = (BTreeMap::new(), 0, 0);
        let mut queues = vec![VecDeque::new(); 9];
        let (mut running, mut done) = ([0; 9], 0);
        let sample = Sample {
            len,
            ..Sample::default()
        };
        let mut owed = 36;
        while done < 4_000 {
            for _ in 0..std::mem::take(&mut owed) {
                let chosen = choice.pick(&all, &sample, |_| true).expect("room");
                let slot = all[chosen].tracker.reserve().expect("free");
                queues[chosen / each].push_back((chosen, slot));
            }
            for (node, queue) in queues.iter_mut().enumerate() {
                while running[node] < 4
                    && let Some(job) = queue.pop_front()
                {
                    (running[node], number) = (running[node] + 1, number + 1);
                    ends.insert((now + 64 * MS[node], number), job);
                }
            }
            let ((at, _), (connection, slot)) = ends.pop_first().expect("running");
            all[connection].tracker.release(slot);
            running[connection / each] -= 1;
            (now, owed, done) = (at, 1, done + 1);
        }
        let ideal: f64 = MS.iter().map(|ms| 4.0 / (64 * ms) as f64).sum();
        f64::from(done) / now as f64 / ideal
    }

    #[test]
    fn single_requests_use_nodes_of_uneven_speed_to_the_full() {
        for (each, len) in [(1, 400), (2, 400), (2, 32_000), (4, 400), (4, 32_000)] {
            let share = share(true, each, len);
            assert!(share > 0.95, "{each} connections, {len} bytes: {share}");
        }
        let by_connection = share(false, 4, 32_000);
        assert!(
            by_connection < 0.7,
            "the nodes' counts are for this: {by_connection}"
        );
    }
}
