//! The topology of this machine: NICs, GPUs, cores and NUMA nodes, distances, and each GPU's NICs.
//!
//! The topology is read from sysfs below a root directory: `/` for this machine, a small tree for
//! tests. Addresses are not in sysfs, so the caller passes them.
//!
//! | item | purpose |
//! | --- | --- |
//! | [`Topology::read`] | sysfs to plain types |
//! | [`PciPlace`], [`Nearness`] | a device's position in the PCIe tree, and the distance of two |
//! | `NicGroup` | the NICs of each GPU |
//! | [`spell_out`] | expands entries of `nics` that match several NICs |
//! | [`Topology::near`] | cores and memory near a NIC |
//! | [`Topology::matrix`] | a table for the user |
//! | [`Topology::frontend_yaml`], [`Topology::accelerator_yaml`] | this machine's configuration |
//! | [`fill_template`], [`FIRST_RUN`] | configurations from templates, settings for a first run |
//! | [`interface_addresses`] | this machine's addresses |
//! | [`LinkWatch`] | whether a NIC's link is down |
//! | [`links`] | link layers of NICs |
//! | [`command()`] | `accelerator topology` and `qdl topology` |

mod addresses;
mod command;
mod groups;
mod link;
mod matching;
mod matrix;
mod near;
mod place;
mod read;
mod yaml;

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use serde::Serialize;

pub use addresses::Addresses;
pub(crate) use addresses::interface_addresses;
use addresses::parse_addresses;
pub use command::{NodeProgram, TopologyForm, command};
pub use fabric::os::{BadCpuList, CpuList};
pub use link::LinkWatch;
pub(crate) use link::links;
pub use link::{hardware, members};
pub use matching::{fits, spell_out};
pub use near::pinning_warnings;
pub(crate) use place::Nearness;
pub use place::{PciAddress, PciPlace};
pub use yaml::{FIRST_RUN, Fabric, allowed_name, fill_template};

/// Topology of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Topology {
    /// NUMA nodes, ordered by number.
    pub nodes: Vec<NumaNode>,
    /// NICs that can carry samples: RDMA devices, then network interfaces with an address, both in
    /// the order of the PCIe bus.
    pub nics: Vec<Nic>,
    /// GPUs that can run models, in the order of the PCIe bus.
    pub gpus: Vec<Gpu>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    /// Number of the node.
    pub id: u32,
    /// Cores of the node.
    pub cpus: CpuList,
}

/// A NIC, or one port of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nic {
    /// Name of the RDMA device or network interface.
    pub name: String,
    /// Protocol.
    pub kind: NicKind,
    /// Name of the network interface on the same port.
    pub netdev: Option<String>,
    /// IP addresses, IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// Link speed in Mbit/s, if reported.
    pub speed_mbps: Option<u64>,
    /// True if the link is up.
    pub up: bool,
    /// Position in the PCIe tree.
    pub place: PciPlace,
}

/// Protocol of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NicKind {
    /// InfiniBand or RoCE, through this port.
    Rdma {
        /// Port number, from 1.
        port: u8,
        /// `InfiniBand` or `Ethernet`.
        link_layer: String,
    },
    /// Sockets only.
    Tcp,
}

impl Nic {
    /// Whether the NIC is an RDMA device.
    pub fn is_rdma(&self) -> bool {
        matches!(self.kind, NicKind::Rdma { .. })
    }
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// PCI vendor id, such as 0x10de.
    pub vendor: u16,
    /// Position in the PCIe tree.
    pub place: PciPlace,
}

/// The topology is unreadable, or an entry of `nics` fits no NIC. The line names the file or the
/// entry.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TopologyError(String);
