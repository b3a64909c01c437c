//! Choice of connections by the rails' health, for several peers, connections per rail and threads.
//!
//! A connection uses one rail to one peer and ends at one of the peer's targets. The arbiter takes
//! the target with the fewest outstanding samples, in turn among equals. The peer's `PeerRails`
//! choose the rail. The rail's connection with the fewest samples in flight takes the sample.
//!
//! A decision holds the peer's lock for the few hundred nanoseconds of `PeerRails::pick`.
//! Completions take no lock: [`Meter`] counts them. Apart from decisions, only changes of a
//! connection, heartbeats, reports and the tick (every few milliseconds) take the lock.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use crossbeam_utils::CachePadded;

use super::{
    Change, Evidence, Load, Meter, PeerCfgs, RailId, RailReport, Score,
    peer::{Meters, PeerRails},
};
use fabric::os::lock;

/// Peer, rail, target and NIC of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionRail {
    /// Index of the peer.
    pub peer: usize,
    /// The rail to that peer.
    pub rail: RailId,
    /// The target at that peer.
    pub target: usize,
    /// Index of the local NIC, equal for all connections of a rail.
    pub nic: usize,
}

#[derive(Debug)]
struct Peer {
    rails: Mutex<PeerRails>,
    meters: Meters,
    /// Per rail: index of the local NIC.
    nics: Box<[usize]>,
}

impl Peer {
    /// The rails, under the peer's lock. After a panic the scores are at worst out of date.
    fn rails(&self) -> MutexGuard<'_, PeerRails> {
        lock(&self.rails)
    }
}

#[derive(Debug)]
struct Target {
    peer: usize,
    target: usize,
    outstanding: CachePadded<AtomicU32>,
    /// Per rail of the peer: indices of the connections that end at this target.
    connections: Box<[Vec<usize>]>,
}

/// An arbiter that chooses connections by the rails' health.
#[derive(Debug)]
pub struct RailArbiter {
    peers: Box<[Peer]>,
    targets: Box<[Target]>,
    connections: Box<[ConnectionRail]>,
    /// Per connection: index of its target in `targets`.
    target_of: Box<[usize]>,
    /// Per connection: whether it is up. Changed under the peer's lock.
    up: Box<[AtomicBool]>,
    turn: AtomicU32,
}

impl RailArbiter {
    /// Creates an arbiter with all connections down. Each connection names one of the peers, one of
    /// its rails and one of its targets; all connections of a rail have the same NIC.
    ///
    /// # Errors
    /// A peer's number of rails is 0 or too large.
    pub fn new(peers: &[PeerCfgs], connections: Vec<ConnectionRail>) -> Result<Self, String> {
        let mut targets = Vec::new();
        let mut first_target = Vec::new();
        for (p, peer) in peers.iter().enumerate() {
            first_target.push(targets.len());
            targets.extend((0..peer.targets.len()).map(|t| Target {
                peer: p,
                target: t,
                outstanding: CachePadded::default(),
                connections: vec![Vec::new(); peer.rails].into(),
            }));
        }
        let mut target_of = Vec::with_capacity(connections.len());
        let mut nics = BTreeMap::new();
        for (connection, l) in connections.iter().enumerate() {
            nics.insert((l.peer, l.rail), l.nic);
            let target = first_target[l.peer] + l.target;
            targets[target].connections[l.rail.index()].push(connection);
            target_of.push(target);
        }
        let peers = peers
            .iter()
            .enumerate()
            .map(|(p, c)| {
                let rails = PeerRails::new(c)?;
                // A rail without a connection has no known NIC: use an index that no NIC has.
                let nic = |r: usize| *nics.get(&(p, RailId(r as u8))).unwrap_or(&usize::MAX);
                Ok(Peer {
                    meters: rails.meters().clone(),
                    rails: Mutex::new(rails),
                    nics: (0..c.rails).map(nic).collect(),
                })
            })
            .collect::<Result<_, String>>()?;
        Ok(RailArbiter {
            peers,
            targets: targets.into(),
            up: connections.iter().map(|_| AtomicBool::new(false)).collect(),
            connections: connections.into(),
            target_of: target_of.into(),
            turn: AtomicU32::new(0),
        })
    }

    /// Chooses the connection for a sample, and adds its `len` bytes to the rail's. A call of
    /// [`Self::complete`] or [`Self::take_back`] must follow. `None` if all are full or down.
    pub fn pick(&self, now: u64, len: u32, load: impl Fn(usize) -> Load) -> Option<usize> {
        let n = self.targets.len();
        let start = self.turn.fetch_add(1, Ordering::Relaxed) as usize % n.max(1);
        let in_turn = || (start..n).chain(0..start);
        let outstanding = |t: &usize| self.targets[*t].outstanding.load(Ordering::Relaxed);
        let first = in_turn().min_by_key(outstanding)?;
        // Try other targets only if the first target is lost or full.
        std::iter::once(first)
            .chain(in_turn().filter(|t| *t != first))
            .find_map(|t| self.pick_at(&self.targets[t], now, len, &load))
    }

    fn pick_at(
        &self,
        target: &Target,
        now: u64,
        len: u32,
        load: impl Fn(usize) -> Load,
    ) -> Option<usize> {
        let has_room = |rail: RailId| {
            target.connections[rail.index()]
                .iter()
                .any(|l| load(*l).takes())
        };
        let rail = self.peers[target.peer]
            .rails()
            .pick(now, target.target, len, has_room)?;
        let taking = target.connections[rail.index()]
            .iter()
            .map(|l| (*l, load(*l)))
            .filter(|(_, l)| l.takes());
        let Some((connection, _)) = taking.min_by_key(|(_, l)| l.in_flight) else {
            // Another thread took the last slot since the rail was chosen.
            self.peers[target.peer].meters[rail.index()].retire(len);
            return None;
        };
        target.outstanding.fetch_add(1, Ordering::Relaxed);
        Some(connection)
    }

    /// Records the answer to a sample on `connection`; `network_ns` is round trip minus residence.
    pub fn complete(&self, connection: usize, len: u32, network_ns: u64) {
        if let Some((l, t)) = self.at(connection) {
            t.outstanding.fetch_sub(1, Ordering::Relaxed);
            self.meter(l).complete(len, network_ns);
        }
    }

    /// Records the network time of a warm-up sample that was alone in flight, without a
    /// [`Self::pick`] before. Such samples set the rail's baselines.
    pub(crate) fn observe_unloaded(&self, connection: usize, len: u32, network_ns: u64) {
        if let Some((l, _)) = self.at(connection) {
            self.meter(l).gauge.observe(len, network_ns);
        }
    }

    /// Takes back a sample assigned to `connection` that was not posted or must be sent again.
    pub(crate) fn take_back(&self, connection: usize, len: u32) {
        if let Some((l, t)) = self.at(connection) {
            t.outstanding.fetch_sub(1, Ordering::Relaxed);
            self.meter(l).retire(len);
        }
    }

    pub(crate) fn connections_of(
        &self,
        peer: usize,
        rail: RailId,
    ) -> impl Iterator<Item = usize> + '_ {
        let connections = self.connections.iter().enumerate();
        connections
            .filter(move |(_, l)| (l.peer, l.rail) == (peer, rail))
            .map(|(i, _)| i)
    }

    fn at(&self, connection: usize) -> Option<(&ConnectionRail, &Target)> {
        let l = self.connections.get(connection)?;
        Some((l, &self.targets[self.target_of[connection]]))
    }

    fn meter(&self, l: &ConnectionRail) -> &Meter {
        &self.peers[l.peer].meters[l.rail.index()]
    }

    /// Number of connections of a rail that are up.
    fn connections_up(&self, peer: usize, rail: RailId) -> usize {
        let of_rail = self.connections_of(peer, rail);
        of_rail
            .filter(|c| self.up[*c].load(Ordering::Relaxed))
            .count()
    }

    /// Records that a connection is up; no effect on one that is.
    pub fn connection_up(&self, now: u64, connection: usize, on_change: &mut dyn FnMut(Change)) {
        if let Some((l, _)) = self.at(connection) {
            let mut rails = self.peers[l.peer].rails();
            let was_up = self.up[connection].swap(true, Ordering::Relaxed);
            if !was_up && self.connections_up(l.peer, l.rail) == 1 {
                rails.restored(now, l.rail, on_change);
            }
        }
    }

    /// Records the loss of a connection; no effect on one that is down. A rail is lost with its
    /// last connection. Other rails, the NIC's report and the control session locate the fault.
    pub fn connection_lost(
        &self,
        now: u64,
        connection: usize,
        local_down: Option<bool>,
        control_lost: bool,
        on_change: &mut dyn FnMut(Change),
    ) {
        let Some((l, _)) = self.at(connection) else {
            return;
        };
        let mut rails = self.peers[l.peer].rails();
        let was_up = self.up[connection].swap(false, Ordering::Relaxed);
        if !was_up || self.connections_up(l.peer, l.rail) > 0 {
            return;
        }
        let mut e = Evidence {
            local_down,
            control_lost,
            ..Evidence::default()
        };
        for (p, peer) in self.peers.iter().enumerate() {
            for (r, nic) in peer.nics.iter().enumerate() {
                let rail = RailId(r as u8);
                if (p, rail) == (l.peer, l.rail) {
                    continue;
                }
                let up = usize::from(self.connections_up(p, rail) > 0);
                if *nic == l.nic {
                    (e.same_nic_up, e.same_nic_down) =
                        (e.same_nic_up + up, e.same_nic_down + 1 - up);
                }
                if p == l.peer {
                    (e.same_peer_up, e.same_peer_down) =
                        (e.same_peer_up + up, e.same_peer_down + 1 - up);
                }
            }
        }
        rails.failed(now, l.rail, e.fault(), on_change);
    }

    /// Folds the measurements into the scores, if a tick is due.
    pub fn tick(&self, now: u64, on_change: &mut dyn FnMut(usize, Change)) {
        for (i, peer) in self.peers.iter().enumerate() {
            peer.rails().tick(now, &mut |c| on_change(i, c));
        }
    }

    /// Records scores from a peer's heartbeat: of the peer's interior, and of the rails.
    pub fn set_peers_scores(
        &self,
        peer: usize,
        interior: Score,
        rails: impl IntoIterator<Item = (RailId, Score)>,
    ) {
        if let Some(p) = self.peers.get(peer) {
            let mut of_peer = p.rails();
            of_peer.set_far(interior);
            for (rail, score) in rails {
                of_peer.set_peers_score(rail, score);
            }
        }
    }

    pub(crate) fn report(&self, peer: usize) -> Vec<RailReport> {
        self.peers
            .get(peer)
            .map_or_else(Vec::new, |p| p.rails().report().collect())
    }
}
