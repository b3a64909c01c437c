//! Placement of a node's NIC threads and memory, for its summary.

use fabric::os::{Near, numa_nodes};
use record::{NicPlace, Places};

use crate::connection::Placed;

/// Placement of NICs with these labels, as configured and as reported by the kernel.
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
