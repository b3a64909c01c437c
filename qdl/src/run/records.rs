//! Conversion of a run's counts to records.

use record::{ConnectionRecord, Ledger, NicPlace, Places, ServedConnection, WarmUpRecord};

use crate::{
    connection::Placed,
    dispatch::{DispatchCounts, WarmUpReport},
    serve::ServeConnection,
};
use fabric::os::{Near, numa_nodes};

/// Completes the dispatcher's records with the facts that the dispatcher does not know: names,
/// causes of losses, and times of the warm-up.
pub(super) fn connections(
    mut records: Vec<ConnectionRecord>,
    name: impl Fn(usize) -> String,
    lost: &[(usize, String)],
    warm_up: Option<&WarmUpReport>,
) -> Vec<ConnectionRecord> {
    for (i, record) in records.iter_mut().enumerate() {
        record.name = name(i);
        if let Some(w) = warm_up.and_then(|w| w.connections.get(i)?.as_ref()) {
            record.cold_us = Some(w.cold_ns.div_ceil(1000));
            record.warm_us = w.warm_ns.map(|ns| ns.div_ceil(1000));
        }
        let of = lost.iter().filter(|(l, _)| *l == i);
        record.lost = of.map(|(_, why)| why.clone()).collect();
    }
    records
}

/// Record of a connection that an accelerator served, made when the connection ends.
pub(super) fn served(c: &ServeConnection, lost: bool) -> ServedConnection {
    let (cfgs, received) = (c.cfgs(), c.received());
    ServedConnection {
        connection: cfgs.connection,
        epoch: cfgs.epoch,
        arrived: received.arrived,
        answered: c.responded(),
        refused: c.refused(),
        dropped_late: c.late(),
        wakeups: received.wakeups,
        blocked: c.blocked(),
        tx: c.sent_counts(),
        rx: received.fabric,
        lost,
    }
}

pub(super) fn ledger(d: &DispatchCounts, warm_up: Option<&WarmUpReport>) -> Ledger {
    Ledger {
        issued: d.issued,
        answered: d.completed,
        emptied: d.completed_empty,
        posted: d.posted,
        responses: d.completed,
        redispatched: d.retries,
        refused: d.refused,
        lost_connections: d.connections_lost,
        warmed: warm_up.map_or(0, |w| w.samples),
    }
}

pub(super) fn warm_up(w: &WarmUpReport) -> WarmUpRecord {
    WarmUpRecord {
        samples: w.samples,
        took_ms: w.took_ns as f64 / 1e6,
        sizes: w.sizes.0,
        of_sizes: w.sizes.1,
        at_once: w.at_once,
    }
}

/// Placement of these NICs' threads and memory, as configured and as the kernel reports it.
pub(super) fn places<'a>(
    nics: impl Iterator<Item = (String, &'a Near)>,
    placed: Vec<Placed>,
) -> Places {
    let nics = nics.zip(placed).enumerate();
    let nics = nics.map(|(index, ((label, near), placed))| NicPlace {
        nic: format!("nics[{index}] {label}"),
        node: near.nodes.first().copied(),
        cpus: placed.cpus.to_string(),
        slots: placed.nodes.into_iter().collect(),
    });
    Places {
        nodes: numa_nodes(),
        nics: nics.collect(),
        samples: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::ConnectionWarmUp;

    #[test]
    fn connections_get_their_names_losses_and_warm_up_times() {
        let mut counts = vec![ConnectionRecord::default(); 3];
        counts[1].samples = 7;
        let warmed = |cold_ns, warm_ns| Some(ConnectionWarmUp { cold_ns, warm_ns });
        let report = WarmUpReport {
            connections: vec![warmed(1_001, Some(500)), warmed(2_000, None), None],
            ..WarmUpReport::default()
        };
        let lost = [
            (1, "reset".to_owned()),
            (0, "x".to_owned()),
            (1, "y".to_owned()),
        ];
        let connections = connections(counts, |i| format!("a/{i}"), &lost, Some(&report));
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
}
