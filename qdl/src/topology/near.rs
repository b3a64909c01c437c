//! Which cores and which memory belong to a NIC.
//!
//! A machine with one node has nothing to choose: nothing is bound there.

use std::net::IpAddr;

use super::{CpuList, Topology};
use crate::config::{NicConfig, NicFabric};
use fabric::os::{Near, affinity};

/// The device that a provider's domain is on: EFA calls `rdmap0s6` `rdmap0s6-rdm`.
pub fn device_of(domain: &str) -> &str {
    domain.strip_suffix("-rdm").unwrap_or(domain)
}

impl Topology {
    /// True where it makes a difference which node memory lies on.
    pub fn has_several_nodes(&self) -> bool {
        self.nodes.len() > 1
    }

    /// The node that this RDMA device or network interface sits on, where there are several and it
    /// is known.
    pub fn node_of_device(&self, name: &str) -> Option<u32> {
        let nic = self.nics.iter().find(|n| n.name == name)?;
        nic.place.numa.filter(|_| self.has_several_nodes())
    }

    /// The node of the network interface that has this address, likewise. Loopback, a bridge and
    /// what else has no hardware have none.
    pub fn node_of_address(&self, address: IpAddr) -> Option<u32> {
        let nic = self.nics.iter().find(|n| n.addresses.contains(&address))?;
        nic.place.numa.filter(|_| self.has_several_nodes())
    }

    /// A NIC's NUMA node, where the machine has several: the
    /// configured one, or that of the hardware where it is known.
    pub fn node_of_nic(&self, nic: &NicConfig) -> Option<u32> {
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

    /// Where a NIC's threads run and its connections' memory lies: on its node, but for cores that
    /// `cpus` names.
    pub fn near_nic(&self, nic: &NicConfig) -> Near {
        let near = self.near(self.node_of_nic(nic).as_slice());
        match &nic.cpus {
            Some(cpus) => Near {
                cpus: cpus.clone(),
                ..near
            },
            None => near,
        }
    }

    /// Where belongs what several NICs use: on their nodes, as far as these are known.
    pub fn near_nics<'a>(&self, nics: impl IntoIterator<Item = &'a NicConfig>) -> Near {
        let nodes = nics.into_iter().filter_map(|n| self.node_of_nic(n));
        self.near(&nodes.collect::<Vec<_>>())
    }

    /// These nodes and their cores, as far as this thread may run there. Nothing on a machine with
    /// one node.
    pub fn near(&self, nodes: &[u32]) -> Near {
        self.near_within(nodes, &affinity())
    }

    /// As [`Topology::near`], for a thread that may run on `allowed`.
    pub fn near_within(&self, nodes: &[u32], allowed: &CpuList) -> Near {
        let known = |n: &&u32| self.nodes.iter().any(|node| node.id == **n);
        let mut nodes: Vec<u32> = nodes.iter().filter(known).copied().collect();
        nodes.sort_unstable();
        nodes.dedup();
        if !self.has_several_nodes() {
            nodes.clear();
        }
        let own = self.nodes.iter().filter(|n| nodes.contains(&n.id));
        let cpus = own.flat_map(|n| n.cpus.as_slice());
        // Whoever started the program on certain cores meant those. Where none is left, memory
        // alone is near.
        let cpus: Vec<usize> = cpus.copied().filter(|c| allowed.contains(*c)).collect();
        Near { cpus, nodes }
    }
}
