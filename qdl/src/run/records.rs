//! Conversion of a run's counts to records: the border between `counters` and `record`.

use record::{
    ConnectionRecord, Ledger, NicPlace, NicUse, PathUse, Places, ServedConnection, TrafficRecord,
    WarmUpRecord, timeline::ConnectionTick,
};

use crate::{
    connection::Placed,
    counters::{ConnectionCounts, ConnectionReading, NicTimes, PathCounts},
    dispatch::{DispatchCounts, WarmUpReport},
    serve::ServeConnection,
};
use fabric::{
    FabricCounts,
    os::{Near, numa_nodes},
};

/// Records of the connections: the dispatcher's `counts`, with the facts that the dispatcher does
/// not know: names, causes of losses, and times of the warm-up.
pub(super) fn connections(
    counts: &[ConnectionCounts],
    name: impl Fn(usize) -> String,
    lost: &[(usize, String)],
    warm_up: Option<&WarmUpReport>,
) -> Vec<ConnectionRecord> {
    let one = |(i, c): (usize, &ConnectionCounts)| {
        let of = lost.iter().filter(|(l, _)| *l == i);
        let warmed = warm_up.and_then(|w| w.connections.get(i));
        ConnectionRecord {
            name: name(i),
            samples: c.samples,
            refused: c.refused,
            posted: c.posted,
            slots: c.slots,
            allowed: c.allowed,
            in_flight_max: c.in_flight_max,
            silent_ms: c.silent_ms,
            path: path(&c.path),
            wakeups: c.wakeups,
            blocked: c.blocked,
            warmed: c.warmed,
            cold_us: warmed.map(|w| w.cold_ns.div_ceil(1000)),
            warm_us: warmed.and_then(|w| w.warm_ns.map(|ns| ns.div_ceil(1000))),
            tx: traffic(&c.tx),
            rx: traffic(&c.rx),
            lost: of.map(|(_, why)| why.clone()).collect(),
        }
    };
    counts.iter().enumerate().map(one).collect()
}

/// Converts a connection's reading, without a score: the dispatcher does not know the rail's score.
pub(super) fn reading(r: &ConnectionReading) -> ConnectionTick {
    ConnectionTick {
        samples: r.samples,
        bytes_out: r.bytes_out,
        bytes_in: r.bytes_in,
        in_flight: r.in_flight,
        score: None,
        retransmits: r.retransmits,
        window_limited_us: r.window_limited_us,
        rtt_us: r.rtt_us,
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
        tx: traffic(&c.sent_counts()),
        rx: traffic(&received.fabric),
        lost,
    }
}

/// Converts the times of NIC threads.
pub(super) fn nic_use(c: NicTimes) -> NicUse {
    NicUse {
        threads: c.threads,
        worked_us: c.worked_us,
        sleeps: c.sleeps,
    }
}

fn path(p: &PathCounts) -> PathUse {
    PathUse {
        looks: p.looks,
        looked_us: p.looked_us,
        busy_us: p.busy_us,
        rwnd_limited_us: p.rwnd_limited_us,
        rtt_us: p.rtt_us,
        min_rtt_us: p.min_rtt_us,
        retransmits: p.retransmits,
    }
}

fn traffic(c: &FabricCounts) -> TrafficRecord {
    TrafficRecord {
        writes: c.writes,
        parts: c.parts,
        bytes: c.bytes,
        control: c.control,
        syscalls: c.syscalls,
        empty_syscalls: c.empty_syscalls,
        partial: c.partial,
        copies: c.copies,
        copied_bytes: c.copied_bytes,
        inline: c.inline,
        work_requests: c.work_requests,
        doorbells: c.doorbells,
        signaled: c.signaled,
        retired: c.retired,
        receives: c.receives,
        cqes: c.cqes,
        cq_events: c.cq_events,
        progress: c.progress,
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

/// Placement of the threads and memory of NICs with these labels, as configured and as the kernel
/// reports it.
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
        let mut counts = [ConnectionCounts::default(); 3];
        counts[1].samples = 7;
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
        let connections = connections(&counts, |i| format!("a/{i}"), &lost, Some(&report));
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
