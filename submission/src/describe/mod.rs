//! Describes a machine for a submission from Linux, NVML and `qdl::topology`. [`form`] adds what no
//! machine reports. Both become the system's JSON ([`system`]), a diagram ([`diagram`]) and pages
//! on network and bandwidths ([`pages`]).

pub mod diagram;
mod ethtool;
pub mod form;
mod gpus;
mod hardware;
mod nics;
pub mod pages;
pub mod system;

use std::{fs, path::Path};

use qdl::topology::{Topology, TopologyError};
use serde::{Deserialize, Serialize};

use crate::layout::Name;

/// A node's description. A field that could not be read is empty or `None`, never guessed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// The node's name in its configuration; `describe --name` sets it.
    pub node: String,
    /// Host name.
    pub host: String,
    /// The program that wrote the description.
    pub role: Role,
    /// The program's version.
    pub version: String,
    /// The distribution's own name.
    pub operating_system: String,
    /// The kernel's release.
    pub kernel: String,
    /// Processors.
    pub processors: Processors,
    /// Memory.
    pub memory: Memory,
    /// Disks.
    pub disks: Vec<Disk>,
    /// NICs that can carry samples.
    pub nics: Vec<Nic>,
    /// GPUs.
    pub gpus: Vec<Gpu>,
    /// The GPUs' driver, with the newest CUDA version that it supports.
    pub gpu_driver: String,
    /// The kernel's TCP settings, as `net.ipv4.tcp_rmem = …`.
    pub tcp: Vec<String>,
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
    /// The role's name in file names and messages.
    pub fn name(self) -> &'static str {
        match self {
            Role::Frontend => "frontend",
            Role::Accelerator => "accelerator",
        }
    }

    /// File name of a node's description, in the folder [`crate::layout::Tree::nodes`].
    pub fn file(self, node: &Name) -> String {
        format!("{}-{node}.json", self.name())
    }
}

/// The processors of a node, assumed identical.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Processors {
    /// Model name.
    pub model: String,
    /// Sockets.
    pub sockets: u32,
    /// Cores in each socket.
    pub cores_per_socket: u32,
    /// Hardware threads of the node.
    pub threads: u32,
    /// Maximum clock, in MHz.
    pub max_mhz: Option<u64>,
    /// Caches of CPU 0, as `L1 Data 32K`.
    pub caches: Vec<String>,
    /// NUMA nodes.
    pub numa_nodes: u32,
}

/// Memory of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Memory that the kernel manages, in bytes.
    pub bytes: u64,
    /// Whether controllers correct errors; `None` if the kernel does not report it.
    pub ecc: Option<bool>,
    /// Modules, as `8 x 32768 MB DDR4`.
    pub modules: Vec<String>,
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    /// Kernel name, as `nvme0n1`.
    pub name: String,
    /// Its model.
    pub model: String,
    /// Capacity in bytes.
    pub bytes: u64,
    /// Whether the disk rotates.
    pub rotational: bool,
}

/// A NIC, or one port of a NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nic {
    /// Name of the RDMA device, else of the interface.
    pub name: String,
    /// The network interface of the same port.
    pub netdev: Option<String>,
    /// `Ethernet`, `InfiniBand`, `IEEE 802.11`, or another link layer.
    pub link_layer: String,
    /// Whether it is an RDMA device.
    pub rdma: bool,
    /// Name of the card, from its PCI ids.
    pub model: String,
    /// Name of the driver.
    pub driver: String,
    /// Firmware version.
    pub firmware: String,
    /// `copper` or `fiber`, if the port reports it.
    pub media: Option<String>,
    /// Link speed, in Mbit/s.
    pub speed_mbps: Option<u64>,
    /// Maximum packet size, in bytes.
    pub mtu: Option<u64>,
    /// Addresses.
    pub addresses: Vec<String>,
    /// Whether the link is up.
    pub up: bool,
    /// PCI address.
    pub pci: Option<String>,
    /// Generation and width of the PCIe link, as `16.0 GT/s PCIe x16`.
    pub pcie: Option<String>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// Product name.
    pub name: String,
    /// Memory in bytes.
    pub bytes: u64,
    /// Whether ECC of the GPU's memory is on; `None` if unknown.
    pub ecc: Option<bool>,
    /// Maximum clock of the GPU's cores, in MHz.
    pub max_mhz: Option<u64>,
    /// PCI address.
    pub pci: String,
    /// Generation and width of the PCIe link, as `PCIe Gen5 x16`.
    pub pcie: Option<String>,
    /// Number of active NVLinks.
    pub nvlinks: u32,
}

impl Node {
    /// Describes this machine.
    ///
    /// # Errors
    /// [`TopologyError`]: the topology cannot be read from /proc or /sys.
    pub fn of_this_machine(role: Role, version: &str) -> Result<Self, TopologyError> {
        let root = Path::new("/");
        let mut node = Self::with(root, &Topology::of_this_machine()?, role, version);
        nics::ask(&mut node.nics);
        gpus::ask(&mut node);
        Ok(node)
    }

    /// Describes this machine as JSON, with the node name `name`.
    ///
    /// # Errors
    /// The topology cannot be read, or the description cannot be serialized; the text says
    /// why.
    pub fn told(role: Role, version: &str, name: &str) -> Result<String, String> {
        let node = Self::of_this_machine(role, version).map_err(|e| e.to_string())?;
        let node = Node {
            node: name.to_owned(),
            ..node
        };
        serde_json::to_string(&node).map_err(|e| e.to_string())
    }

    /// Describes the machine whose `proc`, `sys` and `etc` lie below `root`. Lacks what needs a
    /// call to a driver: NIC firmware and media, and NVML's facts of GPUs.
    ///
    /// # Errors
    /// [`TopologyError`]: as for [`of_this_machine`](Self::of_this_machine).
    pub fn below(root: &Path, role: Role, version: &str) -> Result<Self, TopologyError> {
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
    pub fn without_ecc(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut say = |what: &str, ecc: Option<bool>| {
            match ecc {
            Some(true) => {}
            Some(false) => found.push(format!("{what} has no ECC, or it is off")),
            None => found.push(format!(
                "nobody says whether {what} has ECC; host_memory_ecc or accelerator_memory_ecc of the form does"
            )),
        }
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

/// Number in a small file.
fn number(root: &Path, file: &str) -> Option<u64> {
    text(root, file).parse().ok()
}

#[cfg(test)]
mod tests;
