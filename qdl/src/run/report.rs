//! Records of a cluster's run, for the summary.

use super::common::PeerState;
use crate::{
    dispatch::{DispatchCounts, WarmUpReport},
    stats::{AcceleratorRecord, ConnectionRecord, Ledger, WarmUpRecord, limits::NodeUse},
};

/// Adds to the dispatcher's records what it does not know: the connections' names, the causes of
/// their losses, and their warm-up times.
pub(super) fn complete(
    connections: &mut [ConnectionRecord],
    name: impl Fn(usize) -> String,
    lost: &[(usize, String)],
    warm_up: Option<&WarmUpReport>,
) {
    for (i, connection) in connections.iter_mut().enumerate() {
        connection.name = name(i);
        let of = lost.iter().filter(|(l, _)| *l == i);
        connection.lost = of.map(|(_, why)| why.clone()).collect();
        if let Some(w) = warm_up.and_then(|w| w.connections.get(i)) {
            connection.cold_us = Some(w.cold_ns.div_ceil(1000));
            connection.warm_us = w.warm_ns.map(|ns| ns.div_ceil(1000));
        }
    }
}

/// Record of an accelerator, from its own totals.
pub(super) fn accelerator(peer: &PeerState, connections: usize) -> AcceleratorRecord {
    let said = peer.drained;
    let counters = said.unwrap_or_default();
    let lost = peer.outages.now().filter(|_| peer.outages.is_whole());
    AcceleratorRecord {
        node: peer.node.clone(),
        engine: peer.engine.name.clone(),
        content: peer.engine.content.clone(),
        facts: Some(peer.facts.clone()),
        connections,
        samples: said.map(|c| c.responded),
        arrived: said.map(|c| c.arrived),
        parts: said.map(|c| c.parts),
        refused: counters.refused,
        dropped_late: counters.dropped_late,
        copies: counters.copies,
        batches: peer.batches.clone(),
        // The frontend reads it from the copy of the node's configuration.
        batching: String::new(),
        gpus: peer.gpus.clone(),
        used: match &peer.used {
            [Some(before), Some(now)] => now.since(before),
            // Without the first reading, the difference is unknown.
            _ => NodeUse::default(),
        },
        // The frontend adds it after reading LoadGen's log.
        accuracy: None,
        lost: lost.map(|outage| outage.cause.clone()),
        lost_sessions: peer.lost_sessions.clone(),
    }
}

/// The dispatcher's totals, for the reconciliation.
pub(super) fn ledger(d: &DispatchCounts, warm_up: Option<&WarmUpReport>) -> Ledger {
    Ledger {
        issued: d.issued,
        answered: d.completed,
        emptied: d.completed_empty,
        posted: d.posted,
        responses: d.completed,
        redispatched: d.again,
        refused: d.refused,
        late_dropped: 0,
        lost_connections: d.connections_lost,
        warmed: warm_up.map_or(0, |w| w.samples),
    }
}

/// Record of the warm-up.
pub(super) fn warm_up(w: &WarmUpReport) -> WarmUpRecord {
    WarmUpRecord {
        samples: w.samples,
        took_ms: w.took_ns as f64 / 1e6,
        sizes: w.sizes.0,
        of_sizes: w.sizes.1,
        at_once: w.at_once,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        control::Counters, dispatch::ConnectionWarmUp, stats::BatchSizes, wire::EngineInfo,
    };

    #[test]
    fn connections_get_their_names_losses_and_warm_up_times() {
        let mut connections = vec![ConnectionRecord::default(); 3];
        connections[1].samples = 7;
        let warmed = |cold_ns, warm_ns| ConnectionWarmUp { cold_ns, warm_ns };
        let report = WarmUpReport {
            connections: vec![warmed(1_001, Some(500)), warmed(2_000, None)],
            ..WarmUpReport::default()
        };
        let lost = [
            (1, "reset".to_owned()),
            (0, "x".to_owned()),
            (1, "y".to_owned()),
        ];
        complete(&mut connections, |i| format!("a/{i}"), &lost, Some(&report));
        let [a, b, c] = &connections[..] else {
            panic!("three")
        };
        assert_eq!(
            (a.name.as_str(), a.cold_us, a.warm_us),
            ("a/0", Some(2), Some(1))
        );
        assert_eq!(
            (b.name.as_str(), b.cold_us, b.warm_us),
            ("a/1", Some(2), None)
        );
        assert_eq!((b.samples, b.lost.len()), (7, 2));
        assert_eq!((c.cold_us, c.lost.is_empty()), (None, true));
    }

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
        let silent = accelerator(&peer, 2);
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
        let lost = accelerator(&peer, 2);
        assert_eq!((lost.samples, lost.answered()), (None, Some(9)));
        let session = lost.lost_sessions[0];
        assert_eq!((session.as_of_s, session.batches), (Some(7.0), 3));
        peer.lost_sessions.clear();
        peer.drained = Some(counters);
        // One more heartbeat between the answer to the drain and the end of the session.
        peer.heartbeat = Some((counters, 8));
        peer.session_over(|ns| Some(ns as f64));
        let a = accelerator(&peer, 2);
        assert_eq!((a.answered(), a.lost_sessions.len()), (Some(9), 0));
        assert_eq!(
            (a.samples, a.arrived, a.engine.as_str()),
            (Some(9), Some(10), "onnx")
        );
        assert_eq!(a.batches.samples(), 9);
    }
}
