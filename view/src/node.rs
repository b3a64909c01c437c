//! The figures of a node: the traffic of its connections, and its NUMA places.

use record::{FabricCounts, NicPlace, Places};

use crate::{bytes, short};

/// Columns of [`traffic`].
pub const TRAFFIC: &str = "sends|reads|wakes|partial|blocked|copies|copied";

/// Kernel calls and copies of both halves, wake-ups, and doorbells that left data unsent.
pub fn traffic(tx: &FabricCounts, rx: &FabricCounts, wakeups: u64, blocked: u64) -> [String; 7] {
    [
        short(tx.syscalls),
        short(rx.syscalls),
        short(wakeups),
        short(tx.partial.saturating_add(rx.partial)),
        short(blocked),
        short(tx.copies.saturating_add(rx.copies)),
        bytes(tx.copied_bytes.saturating_add(rx.copied_bytes)),
    ]
}

/// NUMA placements; empty on a machine with one node.
pub fn places(places: &Places) -> Vec<String> {
    let on = |nodes: &[u32]| match nodes {
        [] => "unknown nodes".to_owned(),
        [only] => format!("node {only}"),
        several => {
            let names: Vec<_> = several.iter().map(u32::to_string).collect();
            format!("nodes {}", names.join(", "))
        }
    };
    let nic = |place: &NicPlace| {
        let wanted = place
            .node
            .map_or("any node".to_owned(), |node| format!("node {node}"));
        let (nic, cpus, slots) = (&place.nic, &place.cpus, on(&place.slots));
        format!("{nic}: {wanted}; thread on cores {cpus}, slots on {slots}")
    };
    let samples = (!places.samples.is_empty()).then(|| on(&places.samples));
    let samples = samples.map(|on| format!("samples on {on}"));
    match places.nodes {
        0 | 1 => Vec::new(),
        _ => places.nics.iter().map(nic).chain(samples).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_is_not_worth_a_line_and_two_are() {
        let nic = |nic: &str, node, slots: &[u32]| NicPlace {
            nic: nic.to_owned(),
            node,
            cpus: "2-3".to_owned(),
            slots: slots.to_vec(),
        };
        let mut at = Places {
            nodes: 1,
            nics: vec![
                nic("nics[0] rxa:1", Some(1), &[1]),
                nic("nics[1] lo", None, &[]),
            ],
            samples: vec![0, 1],
        };
        assert!(places(&at).is_empty());
        at.nodes = 2;
        let expected = [
            "nics[0] rxa:1: node 1; thread on cores 2-3, slots on node 1",
            "nics[1] lo: any node; thread on cores 2-3, slots on unknown nodes",
            "samples on nodes 0, 1",
        ];
        assert_eq!(places(&at), expected);
    }
}
