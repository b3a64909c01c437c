//! Cores, memory and GPUs near a NIC.
//!
//! On a machine with one NUMA node, neither threads nor memory are bound.

use super::{CpuList, Nearness, Nic, Topology};
use crate::config::{NicConfig, NicPlace};
use fabric::os::{Near, affinity};

/// Warnings: one for each NIC whose thread is pinned to cores of a different NUMA node, or whose
/// `numa` names a node that does not exist.
pub fn pinning_warnings(nics: &[NicConfig]) -> Vec<String> {
    let topology = Topology::of_this_machine().unwrap_or_default();
    let each = nics.iter();
    let each = each.flat_map(|nic| [topology.is_pinned_far(nic), topology.is_nowhere(nic)]);
    each.flatten().collect()
}

impl Topology {
    /// Whether the machine has several NUMA nodes, so that the placement of memory matters.
    pub(crate) fn has_several_nodes(&self) -> bool {
        self.nodes.len() > 1
    }

    /// The hardware at a place, if known. Loopback and bridges have none.
    pub(super) fn nic_at(&self, place: NicPlace<'_>) -> Option<&Nic> {
        self.nics.iter().find(|nic| match place {
            NicPlace::Address(address) => nic.addresses.contains(&address),
            NicPlace::Device(name, _) => nic.name == name || nic.netdev.as_deref() == Some(name),
            NicPlace::NoHardware => false,
        })
    }

    /// A NIC's NUMA node, configured or else of its hardware, if known and not the only node.
    pub(crate) fn node_of_nic(&self, nic: &NicConfig) -> Option<u32> {
        let own = || self.nic_at(nic.facts().place)?.place.numa;
        let own = || own().filter(|_| self.has_several_nodes());
        nic.numa.fixed().or_else(own)
    }

    pub(super) fn is_pinned_far(&self, nic: &NicConfig) -> Option<String> {
        let (facts, cpus) = (nic.facts(), nic.cpus.as_ref()?);
        let node = self.nic_at(facts.place)?.place.numa?;
        let own = &self.nodes.iter().find(|n| n.id == node)?.cpus;
        let first = cpus.iter().find(|c| !own.contains(**c))?;
        Some(format!(
            "{} sits on NUMA node {node} (cores {own}), but its thread is pinned to core {first}: \
             every sample crosses between the sockets; choose `cpus` from that node",
            facts.label
        ))
    }

    fn is_nowhere(&self, nic: &NicConfig) -> Option<String> {
        let node = self.node_of_nic(nic)?;
        let is_there = self.nodes.iter().any(|n| n.id == node);
        (self.has_several_nodes() && !is_there).then(|| {
            let nic = nic.facts().label;
            format!("{nic}: this machine has no NUMA node {node}: its `numa` changes nothing")
        })
    }

    /// Placement of a NIC's threads and memory: on its node, or for threads on configured `cpus`.
    pub(crate) fn near_nic(&self, nic: &NicConfig) -> Near {
        let mut near = self.near(self.node_of_nic(nic).as_slice());
        if let Some(cpus) = &nic.cpus {
            near.cpus.clone_from(cpus);
        }
        near
    }

    /// Returns the placement of what several NICs share: on all known nodes of these NICs.
    pub fn near_nics<'a>(&self, nics: impl IntoIterator<Item = &'a NicConfig>) -> Near {
        let nodes = nics.into_iter().filter_map(|n| self.node_of_nic(n));
        self.near(&nodes.collect::<Vec<_>>())
    }

    /// Returns these nodes with their cores, as the thread's affinity permits. Empty with one node.
    pub(crate) fn near(&self, nodes: &[u32]) -> Near {
        self.near_within(nodes, &affinity())
    }

    /// Like [`Topology::near`], for a thread with affinity `allowed`.
    pub(crate) fn near_within(&self, nodes: &[u32], allowed: &CpuList) -> Near {
        let known = |n: &&u32| self.nodes.iter().any(|node| node.id == **n);
        let mut nodes: Vec<u32> = nodes.iter().filter(known).copied().collect();
        nodes.sort_unstable();
        nodes.dedup();
        if !self.has_several_nodes() {
            nodes.clear();
        }
        let own = self.nodes.iter().filter(|n| nodes.contains(&n.id));
        let cpus = own.flat_map(|n| n.cpus.as_slice());
        // Respect the program's initial affinity. If no core remains, only memory is placed.
        let cpus: Vec<usize> = cpus.copied().filter(|c| allowed.contains(*c)).collect();
        Near { cpus, nodes }
    }

    /// Returns the GPUs nearest to an RDMA device by the PCIe tree, all at the same distance; none
    /// for a device that is not on the PCIe bus.
    pub(crate) fn nearest_gpus(&self, device: &str) -> Vec<(usize, Nearness)> {
        let mut nics = self.nics.iter();
        let nic = nics.find(|n| n.is_rdma() && n.name == device && n.place.address().is_some());
        let near = |nic: &Nic| {
            let gpus = self.gpus.iter().map(|gpu| nic.place.nearness(&gpu.place));
            let all: Vec<_> = gpus.enumerate().collect();
            let best = all.iter().map(|(_, nearness)| *nearness).min();
            let is_best = |(_, nearness): &(usize, Nearness)| Some(*nearness) == best;
            all.into_iter().filter(is_best).collect()
        };
        nic.map_or_else(Vec::new, near)
    }
}
