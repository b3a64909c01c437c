//! Describes a machine for a submission from Linux, NVML and `qdl::topology`. [`form`] adds what no
//! machine reports. Both become the system's JSON ([`system`]), a diagram ([`diagram`]) and pages
//! on network and bandwidths ([`pages`]).

pub(crate) mod diagram;
mod ethtool;
pub(crate) mod form;
mod gpus;
mod hardware;
mod nics;
pub(crate) mod pages;
pub(crate) mod system;

use std::{fs, path::Path};

use qdl::topology::{Topology, TopologyError};
use serde::{Deserialize, Serialize};

use crate::layout::Name;

/// A node's description. A field that could not be read is empty or `None`, never guessed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// The node's name in its configuration; `describe --name` sets it.
    pub(crate) node: String,
    pub(crate) host: String,
    /// The program that wrote the description.
    pub(crate) role: Role,
    pub(crate) version: String,
    pub(crate) operating_system: String,
    pub(crate) kernel: String,
    pub(crate) processors: Processors,
    pub(crate) memory: Memory,
    pub(crate) disks: Vec<Disk>,
    /// NICs that can carry samples.
    pub(crate) nics: Vec<Nic>,
    pub(crate) gpus: Vec<Gpu>,
    /// The GPUs' driver, with the newest CUDA version that it supports.
    pub(crate) gpu_driver: String,
    /// The kernel's TCP settings, as `net.ipv4.tcp_rmem = …`.
    pub(crate) tcp: Vec<String>,
}

/// The role of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The node that runs LoadGen.
    Frontend,
    /// A node of the SUT.
    #[default]
    Accelerator,
}

impl Role {
    /// File name of a node's description, in the folder [`crate::layout::Tree::nodes`].
    pub(crate) fn file(self, node: &Name) -> String {
        match self {
            Role::Frontend => format!("frontend-{node}.json"),
            Role::Accelerator => format!("accelerator-{node}.json"),
        }
    }
}

/// The processors of a node, assumed identical.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Processors {
    pub(crate) model: String,
    pub(crate) sockets: u32,
    pub(crate) cores_per_socket: u32,
    pub(crate) threads: u32,
    pub(crate) max_mhz: Option<u64>,
    /// Caches of CPU 0, as `L1 Data 32K`.
    pub(crate) caches: Vec<String>,
    pub(crate) numa_nodes: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Memory {
    /// Memory that the kernel manages, in bytes.
    pub(crate) bytes: u64,
    /// Whether controllers correct errors; `None` if the kernel does not report it.
    pub(crate) ecc: Option<bool>,
    /// Modules, as `8 x 32768 MB DDR4`.
    pub(crate) modules: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Disk {
    /// Kernel name, as `nvme0n1`.
    pub(crate) name: String,
    pub(crate) model: String,
    pub(crate) bytes: u64,
    pub(crate) rotational: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Nic {
    /// Name of the RDMA device, else of the interface.
    pub(crate) name: String,
    /// The network interface of the same port.
    pub(crate) netdev: Option<String>,
    /// `Ethernet`, `InfiniBand`, `IEEE 802.11`, or another link layer.
    pub(crate) link_layer: String,
    pub(crate) rdma: bool,
    /// Name of the card, from its PCI ids.
    pub(crate) model: String,
    pub(crate) driver: String,
    pub(crate) firmware: String,
    /// `copper` or `fiber`, if the port reports it.
    pub(crate) media: Option<String>,
    /// Link speed, in Mbit/s.
    pub(crate) speed_mbps: Option<u64>,
    /// Maximum packet size, in bytes.
    pub(crate) mtu: Option<u64>,
    pub(crate) addresses: Vec<String>,
    pub(crate) up: bool,
    pub(crate) pci: Option<String>,
    /// Generation and width of the PCIe link, as `16.0 GT/s PCIe x16`.
    pub(crate) pcie: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Gpu {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Whether ECC of the GPU's memory is on; `None` if unknown.
    pub(crate) ecc: Option<bool>,
    /// Maximum clock of the GPU's cores, in MHz.
    pub(crate) max_mhz: Option<u64>,
    pub(crate) pci: String,
    /// Generation and width of the PCIe link, as `PCIe Gen5 x16`.
    pub(crate) pcie: Option<String>,
    pub(crate) nvlinks: u32,
}

impl Node {
    pub(crate) fn of_this_machine(role: Role, version: &str) -> Result<Self, TopologyError> {
        let root = Path::new("/");
        let mut node = Self::with(root, &Topology::of_this_machine()?, role, version);
        nics::ask(&mut node.nics);
        gpus::ask(&mut node);
        Ok(node)
    }

    /// Describes this machine as JSON, with the node name `name`.
    ///
    /// # Errors
    /// The topology cannot be read, or the description cannot be serialized; the text says why.
    pub fn describe_as_json(role: Role, version: &str, name: &str) -> Result<String, String> {
        let node = Self::of_this_machine(role, version).map_err(|e| e.to_string())?;
        let node = Node {
            node: name.to_owned(),
            ..node
        };
        serde_json::to_string(&node).map_err(|e| e.to_string())
    }

    /// Describes the machine whose `proc`, `sys` and `etc` lie below `root`. The description lacks
    /// what only a driver reports: NIC firmware and media, and NVML's facts of GPUs.
    pub(crate) fn below(root: &Path, role: Role, version: &str) -> Result<Self, TopologyError> {
        Ok(Self::with(root, &Topology::below(root)?, role, version))
    }

    fn with(root: &Path, topology: &Topology, role: Role, version: &str) -> Self {
        let host = text(root, "proc/sys/kernel/hostname");
        Node {
            node: host.clone(),
            host,
            role,
            version: version.to_owned(),
            operating_system: hardware::operating_system(root),
            kernel: text(root, "proc/sys/kernel/osrelease"),
            processors: hardware::processors(root, topology),
            memory: hardware::memory(root),
            disks: hardware::disks(root),
            nics: nics::read(root, topology),
            gpus: gpus::read(topology),
            gpu_driver: String::new(),
            tcp: hardware::tcp(root),
        }
    }

    /// One sentence for each kind of memory without ECC, or with unknown ECC.
    pub(crate) fn without_ecc(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut say = |what: &str, ecc: Option<bool>| match ecc {
            Some(true) => {}
            Some(false) => found.push(format!("{what} has no ECC, or it is off")),
            None => found.push(format!(
                "nobody says whether {what} has ECC; host_memory_ecc or accelerator_memory_ecc of \
                 the form does"
            )),
        };
        say("host memory", self.memory.ecc);
        if let Some(gpu) = self.gpus.iter().find(|g| g.ecc != Some(true)) {
            say(&format!("the memory of {}", gpu.name), gpu.ecc);
        }
        found
    }
}

/// Trimmed text of a small file; empty if the file cannot be read.
fn text(root: &Path, file: &str) -> String {
    let text = fs::read_to_string(root.join(file)).unwrap_or_default();
    text.trim().to_owned()
}

fn number(root: &Path, file: &str) -> Option<u64> {
    text(root, file).parse().ok()
}

#[cfg(test)]
mod tests;
