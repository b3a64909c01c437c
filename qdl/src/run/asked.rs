//! What a cluster can be asked: of itself, of its connections, and of its accelerators.

use std::time::Instant;

use super::{
    Cluster,
    describe::{DESCRIBING, Described},
    permitted,
};
use crate::{
    control::ClientHandle,
    stats::{
        LossRecord,
        timeline::{ConnectionReading, Event},
    },
    wire::{EngineInfo, NodeFacts},
};

impl Cluster {
    /// What each connection is like now, by index.
    pub fn readings(&self) -> Vec<ConnectionReading> {
        let mut all = self.common.dispatcher().readings();
        if let Some(rails) = self.common.rails.get() {
            for peer in 0..self.common.peers.len() {
                let report = self.common.dispatcher().rail_report(peer);
                for (i, reading) in all.iter_mut().enumerate() {
                    let rail = rails.of_connection(i).filter(|(p, _)| *p == peer);
                    let score = |r: &crate::rails::RailReport| {
                        (Some(r.rail) == rail.map(|(_, rail)| rail)).then(|| r.score.as_f64())
                    };
                    reading.score = reading.score.or_else(|| report.iter().find_map(score));
                }
            }
        }
        all
    }

    /// What has happened in a run that goes on, and which accelerators and connections were lost.
    pub fn happened(&self) -> (Vec<Event>, Vec<LossRecord>) {
        let common = &self.common;
        let events = self.events(common.dispatcher().first_issued_ns());
        let losses = (0..common.peers.len()).flat_map(|i| {
            let peer = common.peer(i);
            let of = |at_ns| common.in_run(at_ns);
            peer.outages.records(&peer.node, of)
        });
        (events, losses.collect())
    }

    /// Samples issued and not completed.
    pub fn outstanding(&self) -> u64 {
        self.common.dispatcher().outstanding()
    }

    /// Samples completed with a response.
    pub fn completed(&self) -> u64 {
        self.common.dispatcher().counts().completed
    }

    /// NIC threads.
    pub fn nics(&self) -> usize {
        self.common.config.nics.len()
    }

    /// Names of the accelerators, in the order of the configuration.
    pub fn peers(&self) -> Vec<String> {
        (0..self.common.peers.len())
            .map(|i| self.common.peer(i).node.clone())
            .collect()
    }

    /// Each accelerator's name and engine, in the order of the configuration.
    pub fn engines(&self) -> Vec<(String, EngineInfo)> {
        let of = |i| {
            let peer = self.common.peer(i);
            (peer.node.clone(), peer.engine.clone())
        };
        (0..self.common.peers.len()).map(of).collect()
    }

    /// Each connection's name, by index: its accelerator's, and its number there.
    pub fn connection_names(&self) -> Vec<String> {
        let all = 0..self.common.connection_of.len();
        all.map(|i| self.common.connection_name(i)).collect()
    }

    /// The fabric, as the summary names it.
    pub fn fabric(&self) -> &'static str {
        self.common
            .config
            .nics
            .first()
            .map_or("none", |n| n.fabric())
    }

    /// Why the Network division would not permit what samples go over, a line each: loopback, link
    /// layers that are not known. Empty where nothing speaks against it.
    pub fn link_notes(&self) -> Vec<String> {
        permitted::links(&self.common.facts, &self.peer_facts())
    }

    /// The same of the machines: nodes on one, or on machines that cannot be told apart.
    pub fn machine_notes(&self) -> Vec<String> {
        permitted::machines(&self.common.facts, &self.peer_facts())
    }

    /// Asks every accelerator to describe itself; one that does not is there with the reason.
    pub fn describe(&self) -> Vec<Described> {
        let peers = 0..self.common.peers.len();
        let ask = |i| {
            let peer = self.common.peer(i);
            let pending = peer.handle.as_ref().map(ClientHandle::describe);
            (peer.node.clone(), pending)
        };
        let asked: Vec<_> = peers.map(ask).collect();
        let end = Instant::now() + DESCRIBING;
        let answers = asked.into_iter().map(|(node, pending)| match pending {
            Some(pending) => {
                let left = end.saturating_duration_since(Instant::now());
                Described::of(node, pending.wait(left))
            }
            None => Described {
                node,
                description: Err("its session is over".to_owned()),
            },
        });
        answers.collect()
    }

    /// What this node tells the others of itself.
    pub fn facts(&self) -> NodeFacts {
        self.common.facts.clone()
    }

    /// What each accelerator has told, by its name.
    pub fn peer_facts(&self) -> Vec<(String, NodeFacts)> {
        let of = |i| {
            let peer = self.common.peer(i);
            (peer.node.clone(), peer.facts.clone())
        };
        (0..self.common.peers.len()).map(of).collect()
    }
}
