//! State of one accelerator, as the frontend knows it.

use record::{
    AcceleratorRecord, BatchSizes, EngineInfo, GpuRecord, LostSession, NodeFacts, NodeUse,
};

use super::{outage::Outages, refusals::Refusals};
use crate::{
    control::{ClientHandle, Counters},
    wire::Standing,
};

const MOST_SESSIONS: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct PeerState {
    pub node: String,
    pub address: String,
    pub engine: EngineInfo,
    pub facts: NodeFacts,
    pub handle: Option<ClientHandle>,
    /// Last known part of the SUT's name.
    pub named: Option<String>,
    /// Totals of the accelerator's session, from the answer to the drain.
    pub drained: Option<Counters>,
    pub batches: BatchSizes,
    pub gpus: Vec<GpuRecord>,
    /// Totals and time of the session's last heartbeat.
    pub heartbeat: Option<(Counters, u64)>,
    /// Totals of earlier sessions, as of their last heartbeats.
    pub lost_sessions: Vec<LostSession>,
    pub outages: Outages,
    /// Whether the engine takes samples, from the session's last heartbeat.
    pub standing: Standing,
    pub refusals: Refusals,
    /// Work of the accelerator's node at the start of LoadGen's clock, and at the end.
    pub used: [Option<NodeUse>; 2],
}

impl PeerState {
    /// Records the totals of an ended session from its last heartbeat, unless the drain was
    /// answered: a heartbeat may come between that answer and the end.
    pub(crate) fn session_over(&mut self, in_run: impl Fn(u64) -> Option<f64>) {
        let last = self.heartbeat.take().filter(|_| self.drained.is_none());
        let Some((c, at_ns)) = last else {
            return;
        };
        let over = LostSession {
            as_of_s: in_run(at_ns),
            arrived: c.arrived,
            samples: c.responded,
            dropped_late: c.dropped_late,
            batches: c.batches,
        };
        if self.lost_sessions.len() < MOST_SESSIONS {
            self.lost_sessions.push(over);
        } else if let Some(last) = self.lost_sessions.last_mut() {
            last.add(&over);
        }
    }

    pub(crate) fn record(&self, connections: usize) -> AcceleratorRecord {
        let drained = self.drained;
        let counters = drained.unwrap_or_default();
        let lost = self
            .outages
            .open_outage()
            .filter(|_| self.outages.is_whole());
        AcceleratorRecord {
            node: self.node.clone(),
            engine: self.engine.name.clone(),
            role: self.engine.role,
            content: self.engine.content.clone(),
            facts: Some(self.facts.clone()),
            connections,
            samples: drained.map(|c| c.responded),
            arrived: drained.map(|c| c.arrived),
            parts: drained.map(|c| c.parts),
            refused: counters.refused,
            dropped_late: counters.dropped_late,
            copies: counters.copies,
            batches: self.batches.clone(),
            // The frontend reads the batching from its copy of the node's configuration.
            batching: String::new(),
            gpus: self.gpus.clone(),
            used: match &self.used {
                [Some(before), Some(now)] => now.since(before),
                // Without the first reading, the difference is unknown.
                _ => NodeUse::default(),
            },
            // The frontend adds the accuracy after reading LoadGen's log.
            accuracy: None,
            lost: lost.map(|outage| outage.cause.clone()),
            lost_sessions: self.lost_sessions.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accelerator_is_what_it_said_of_itself() {
        let mut peer = PeerState {
            node: "a".to_owned(),
            engine: EngineInfo {
                name: "onnx".to_owned(),
                ..EngineInfo::default()
            },
            batches: BatchSizes::from_counts(&[0, 9]),
            ..PeerState::default()
        };
        let silent = peer.record(2);
        assert_eq!(
            (silent.connections, silent.samples, silent.arrived),
            (2, None, None)
        );
        let counters = Counters {
            arrived: 10,
            responded: 9,
            batches: 3,
            ..Counters::default()
        };
        // Totals of a lost session are not final.
        peer.heartbeat = Some((counters, 7));
        peer.session_over(|ns| Some(ns as f64));
        let lost = peer.record(2);
        assert_eq!((lost.samples, lost.answered()), (None, Some(9)));
        let session = lost.lost_sessions[0];
        assert_eq!((session.as_of_s, session.batches), (Some(7.0), 3));
        peer.lost_sessions.clear();
        peer.drained = Some(counters);
        // One more heartbeat between the answer to the drain and the end of the session.
        peer.heartbeat = Some((counters, 8));
        peer.session_over(|ns| Some(ns as f64));
        let a = peer.record(2);
        assert_eq!((a.answered(), a.lost_sessions.len()), (Some(9), 0));
        assert_eq!(
            (a.samples, a.arrived, a.engine.as_str()),
            (Some(9), Some(10), "onnx")
        );
        assert_eq!(a.batches.samples(), 9);
    }
}
