//! What this machine is made of, as far as moving samples goes: NICs, GPUs, CPUs and NUMA nodes,
//! which of them are near each other, and which NICs therefore serve which GPU.
//!
//! Everything is read from sysfs below a root directory, which is `/` for this machine and a small
//! tree of a test's own making for any other; addresses, which sysfs does not have, are handed in.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`Topology::read`] | sysfs to plain types |
//! | [`Place`], [`Nearness`] | where on the PCIe tree something sits, and how near two are |
//! | [`NicGroup`] | the NICs of each GPU |
//! | [`spell_out`] | entries of `nics` that stand for several NICs |
//! | [`Topology::near`] | the cores and the memory that belong to a NIC |
//! | [`Topology::matrix`] | for people |
//! | [`Topology::frontend_yaml`], [`Topology::accelerator_yaml`] | this machine's configuration |
//! | [`fill_template`], [`FIRST_RUN`] | configurations from templates, settings of a first run |
//! | [`interface_addresses`] | this machine's addresses |
//! | [`LinkWatch`] | whether a NIC says that its link is down |
//! | [`links`] | what NICs send over |
//! | [`command()`] | `accelerator topology` and `qdl topology` |

mod addresses;
mod command;
mod groups;
mod layer;
mod link;
mod matching;
mod matrix;
mod near;
mod near_gpus;
mod place;
mod read;
mod template;
mod yaml;

#[cfg(test)]
mod tests;

use std::{net::IpAddr, path::PathBuf};

use serde::Serialize;

use addresses::parse_addresses;
pub use addresses::{Addresses, interface_addresses};
pub use command::{Form, Node, command};
pub use fabric::os::{BadCpuList, CpuList};
pub use groups::NicGroup;
pub use layer::{hardware, links};
pub use link::LinkWatch;
pub use matching::{NoSuchNics, spell_out};
pub use near::device_of;
pub use near_gpus::{NearGpu, nearest_gpus};
pub use place::{Nearness, PciAddress, Place};
pub use template::{FIRST_RUN, fill_template};
pub use yaml::{Fabric, allowed_name};

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Topology {
    /// NUMA nodes, by number.
    pub nodes: Vec<NumaNode>,
    /// NICs that can carry samples: RDMA devices first, then network
    /// interfaces with an address; each in the order of the PCIe bus.
    pub nics: Vec<Nic>,
    /// GPUs that can run models, in the order of the PCIe bus.
    pub gpus: Vec<Gpu>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its cores.
    pub cpus: CpuList,
}

/// A NIC, or one port of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nic {
    /// The RDMA device's name, or the network interface's.
    pub name: String,
    /// What it speaks.
    pub kind: NicKind,
    /// Network interface over the same port.
    pub netdev: Option<String>,
    /// Its addresses, IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// Link speed in Mbit/s, where it says so.
    pub speed_mbps: Option<u64>,
    /// True while its link is up.
    pub up: bool,
    /// Where it sits.
    pub place: Place,
}

/// What a NIC speaks.
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
    /// Sockets alone.
    Tcp,
}

impl Nic {
    /// True for an RDMA device.
    pub fn is_rdma(&self) -> bool {
        matches!(self.kind, NicKind::Rdma { .. })
    }
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// PCI vendor, as 0x10de.
    pub vendor: u16,
    /// Where it sits.
    pub place: Place,
}

/// The machine cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A folder that every Linux has is missing or closed.
    #[error("{path}: {source}; is sysfs mounted there, and is this the right root directory?")]
    Sysfs {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The addresses of this machine.
    #[error("the addresses of this machine: {0}")]
    Addresses(std::io::Error),
    /// The file of addresses that belongs to another machine's tree.
    #[error("addresses, line {line}: {what}")]
    AddressFile {
        /// Line of the file, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
}
