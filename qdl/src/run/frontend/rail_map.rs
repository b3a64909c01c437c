//! Rails of a cluster, for policies by health: their construction from the accelerators' grants,
//! and their names and changes in the log and the report.

use std::{collections::BTreeSet, sync::Mutex};

use record::{RailChange, RailRecord};

use crate::{
    config::HealthConfig,
    rails::{Change, ConnectionRail, PeerCfgs, Policy, RailArbiter, RailId, RailReport, RailState},
    run::lock,
};
use fabric::clock::now_ns;

/// Most recorded changes of rails: an accelerator's scores may cause one per tick.
const MOST_CHANGES: usize = 4_096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionEnd {
    pub nic: u16,
    pub gpu: Option<u32>,
}

/// A rail: this node's NIC and the accelerator's NIC.
type RailEnds = (usize, u16);

#[derive(Debug, Default)]
pub(crate) struct RailMap {
    peers: Vec<Vec<RailEnds>>,
    of: Vec<(usize, RailId)>,
    changes: Mutex<Vec<(usize, Change)>>,
    began_ns: u64,
}

impl RailMap {
    /// Makes the rails of `connections` (peer, local NIC, accelerator's end), and their arbiter.
    pub(crate) fn new(
        connections: &[(usize, usize, ConnectionEnd)],
        peers: usize,
        policy: Policy,
        health: HealthConfig,
    ) -> Result<(Self, RailArbiter), String> {
        let of_peer = |p: usize| connections.iter().filter(move |(peer, ..)| *peer == p);
        let rails: Vec<Vec<RailEnds>> = (0..peers)
            .map(|p| distinct(of_peer(p).map(|(_, nic, end)| (*nic, end.nic))))
            .collect();
        let gpus: Vec<Vec<Option<u32>>> = (0..peers)
            .map(|p| distinct(of_peer(p).map(|(.., end)| end.gpu)))
            .collect();
        let rail_of = |peer: usize, nic: usize, end: ConnectionEnd| {
            let at = rails[peer].iter().position(|r| *r == (nic, end.nic));
            // The arbiter refuses too many rails below.
            RailId(at.unwrap_or(0).min(usize::from(u8::MAX)) as u8)
        };
        let connection = |(peer, nic, end): &(usize, usize, ConnectionEnd)| ConnectionRail {
            peer: *peer,
            rail: rail_of(*peer, *nic, *end),
            target: gpus[*peer].iter().position(|g| *g == end.gpu).unwrap_or(0),
            nic: *nic,
        };
        let connections: Vec<ConnectionRail> = connections.iter().map(connection).collect();
        let peer = |p: usize| {
            let own = |target: usize| {
                let here = connections
                    .iter()
                    .filter(|l| (l.peer, l.target) == (p, target));
                distinct(here.map(|l| l.rail))
            };
            PeerCfgs {
                policy,
                health,
                rails: rails[p].len(),
                targets: (0..gpus[p].len()).map(own).collect(),
            }
        };
        let peers: Vec<_> = (0..peers).map(peer).collect();
        let arbiter = RailArbiter::new(&peers, connections.clone())?;
        let map = RailMap {
            of: connections.iter().map(|c| (c.peer, c.rail)).collect(),
            peers: rails,
            changes: Mutex::default(),
            began_ns: now_ns(),
        };
        Ok((map, arbiter))
    }

    /// Name of a rail, such as `nics[0]-nics[2]`, by the indices in the two nodes' configurations.
    fn name(&self, peer: usize, rail: RailId) -> String {
        match self.peers.get(peer).and_then(|p| p.get(rail.index())) {
            Some((here, there)) => format!("nics[{here}]-nics[{there}]"),
            None => format!("rail {}", rail.0),
        }
    }

    pub(crate) fn record(&self, peer: usize, node: &str, change: Change) -> String {
        let mut changes = lock(&self.changes);
        if changes.len() < MOST_CHANGES {
            changes.push((peer, change));
        }
        drop(changes);
        format!(
            "{node}: rail {}: {} -> {} (latency score {})",
            self.name(peer, change.rail),
            word(change.from),
            word(change.to),
            change.latency
        )
    }

    pub(crate) fn of_connection(&self, connection: usize) -> Option<(usize, RailId)> {
        self.of.get(connection).copied()
    }

    /// Every change so far: peer, time, whether the rail only takes probes afterwards, and text.
    pub(crate) fn changes_so_far(&self) -> Vec<(usize, u64, bool, String)> {
        let each = |(peer, c): &(usize, Change)| {
            let (from, to) = (word(c.from), word(c.to));
            let text = format!("rail {}: {from} -> {to}", self.name(*peer, c.rail));
            (*peer, c.at_ns, c.to == RailState::Probation, text)
        };
        lock(&self.changes).iter().map(each).collect()
    }

    pub(crate) fn at_nic(&self, peer: usize, nic: u16) -> impl Iterator<Item = RailId> + '_ {
        let rails = self.peers.get(peer).into_iter().flatten().enumerate();
        rails
            .filter(move |(_, (_, there))| *there == nic)
            .map(|(i, _)| RailId(i as u8))
    }

    pub(crate) fn records(
        &self,
        report: &[RailReport],
        peer: usize,
        node: &str,
    ) -> Vec<RailRecord> {
        let all = lock(&self.changes);
        let one = |r: &RailReport| RailRecord {
            name: format!("{node} {}", self.name(peer, r.rail)),
            state: word(r.state),
            score: r.score.as_f64(),
            latency: r.latency.as_f64(),
            samples: r.picked,
            bytes: r.delivered_bytes,
            probes: r.probes,
            changes: all
                .iter()
                .filter(|(p, c)| (*p, c.rail) == (peer, r.rail))
                .map(|(_, c)| RailChange {
                    at_s: c.at_ns.saturating_sub(self.began_ns) as f64 / 1e9,
                    from: word(c.from),
                    to: word(c.to),
                    latency: c.latency.as_f64(),
                })
                .collect(),
        };
        report.iter().map(one).collect()
    }
}

fn distinct<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.collect::<BTreeSet<_>>().into_iter().collect()
}

fn word(state: RailState) -> String {
    match state {
        RailState::InService => "in service".to_owned(),
        RailState::Congested => "congested".to_owned(),
        RailState::Probation => "probation".to_owned(),
        RailState::Down(None) => "not up".to_owned(),
        RailState::Down(Some(fault)) => format!("down ({fault})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(nic: u16, gpu: Option<u32>) -> ConnectionEnd {
        ConnectionEnd { nic, gpu }
    }

    #[test]
    fn connections_of_one_pair_of_nics_are_one_rail() {
        let connections = [
            (0, 0, end(0, Some(0))),
            (0, 0, end(0, Some(0))),
            (0, 1, end(1, Some(1))),
            (0, 1, end(1, Some(0))),
            (1, 0, end(3, None)),
        ];
        let (map, arbiter) =
            RailMap::new(&connections, 2, Policy::Best, Default::default()).expect("sound");
        assert_eq!(map.peers, [vec![(0, 0), (1, 1)], vec![(0, 3)]]);
        assert_eq!(
            arbiter.connections_of(0, RailId(1)).collect::<Vec<_>>(),
            [2, 3]
        );
        assert_eq!(map.at_nic(1, 3).collect::<Vec<_>>(), [RailId(0)]);
        assert_eq!(map.at_nic(1, 0).count(), 0);
        assert_eq!(map.name(0, RailId(1)), "nics[1]-nics[1]");
        assert_eq!(arbiter.report(0).len(), 2);
    }
}
