//! Conversion of a run's counts to records.

use record::{
    ConnectionRecord, Ledger, NicPlace, NicUse, Places, ServedConnection, WarmUpRecord,
    timeline::ConnectionTick,
};

use crate::{
    connection::{NicThreadCounts, Placed},
    dispatch::{ConnectionCounts, DispatchCounts, WarmUpReport},
    serve::ServeConnection,
};
use fabric::os::{Near, numa_nodes};

/// Records of connections: the dispatcher's counts, names, causes of losses, and times of the
/// warm-up.
pub(super) fn connections(
    counts: Vec<ConnectionCounts>,
    name: impl Fn(usize) -> String,
    lost: &[(usize, String)],
    warm_up: Option<&WarmUpReport>,
) -> Vec<ConnectionRecord> {
    let record = |(i, c): (usize, ConnectionCounts)| {
        let warmed = warm_up.and_then(|w| w.connections.get(i)?.as_ref());
        let lost = lost.iter().filter(|(l, _)| *l == i);
        ConnectionRecord {
            name: name(i),
            samples: c.answered,
            refused: c.refused,
            posted: c.posted,
            slots: c.slots as u64,
            allowed: c.allowance as u64,
            in_flight_max: c.in_flight_max,
            silent_ms: c.silent_ms,
            path: c.path,
            wakeups: c.wakeups,
            blocked: c.blocked,
            warmed: c.warmed,
            cold_us: warmed.map(|w| w.cold_ns.div_ceil(1000)),
            warm_us: warmed.and_then(|w| Some(w.warm_ns?.div_ceil(1000))),
            tx: c.tx,
            rx: c.rx,
            lost: lost.map(|(_, why)| why.clone()).collect(),
        }
    };
    counts.into_iter().enumerate().map(record).collect()
}

/// Live figures of a connection, without the rail's score.
pub(super) fn reading(c: &ConnectionCounts) -> ConnectionTick {
    ConnectionTick {
        samples: c.answered,
        bytes_out: c.bytes_out,
        bytes_in: c.bytes_in,
        in_flight: c.in_flight as u64,
        score: None,
        retransmits: c.path.retransmits,
        window_limited_us: c.path.rwnd_limited_us,
        rtt_us: c.rtt_us,
    }
}

pub(super) fn nic_use(c: &NicThreadCounts) -> NicUse {
    NicUse {
        threads: c.with_work,
        worked_us: c.worked_us,
        sleeps: c.sleeps,
    }
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
        let mut counts = vec![ConnectionCounts::default(); 3];
        counts[1].answered = 7;
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
