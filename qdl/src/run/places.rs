//! NUMA placement of a node's NIC threads and memory.

use record::{NicPlace, Places};

use crate::connection::Placed;
use fabric::os::{Near, numa_nodes};

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
