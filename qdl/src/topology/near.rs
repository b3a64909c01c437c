//! Cores, memory and GPUs near a NIC.
//!
//! On a machine with one NUMA node, neither threads nor memory are bound.

use std::net::IpAddr;

use super::{CpuList, Nearness, Nic, Topology};
use crate::config::{NicConfig, NicFabric};
use fabric::os::{Near, affinity};

/// Returns the device of a provider's domain: EFA names the domain of `rdmap0s6` `rdmap0s6-rdm`.
pub(crate) fn device_of(domain: &str) -> &str {
    domain.strip_suffix("-rdm").unwrap_or(domain)
}

impl Topology {
    /// Whether the machine has several NUMA nodes, so that the placement of memory matters.
    pub(crate) fn has_several_nodes(&self) -> bool {
        self.nodes.len() > 1
    }

    /// NUMA node of an RDMA device or network interface, if known and not the only node.
    pub(crate) fn node_of_device(&self, name: &str) -> Option<u32> {
        self.node_of(|nic| nic.name == name)
    }

    /// Returns the NUMA node of the network interface with this address, if known and not the only
    /// node. Interfaces without hardware, such as loopback or a bridge, have none.
    pub(crate) fn node_of_address(&self, address: IpAddr) -> Option<u32> {
        self.node_of(|nic| nic.addresses.contains(&address))
    }

    fn node_of(&self, is_it: impl Fn(&Nic) -> bool) -> Option<u32> {
        let nic = self.nics.iter().find(|nic| is_it(nic))?;
        nic.place.numa.filter(|_| self.has_several_nodes())
    }

    /// A NIC's NUMA node, configured or else of its hardware, if known and not the only node.
    pub(crate) fn node_of_nic(&self, nic: &NicConfig) -> Option<u32> {
        let own = || match &nic.fabric {
            NicFabric::Tcp(tcp) => self.node_of_address(tcp.at().ip()),
            NicFabric::Ib(ib) => self.node_of_device(&ib.device),
            NicFabric::Ofi(ofi) => match ofi.address {
                Some(address) => self.node_of_address(address),
                None => self.node_of_device(device_of(ofi.domain.as_deref()?)),
            },
        };
        nic.numa.fixed().or_else(own)
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
