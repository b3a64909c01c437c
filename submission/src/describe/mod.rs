//! A machine, as a submission describes it: what Linux, NVML and `qdl::topology` tell. What no
//! machine knows comes from a form ([`form`]); both become the system's JSON ([`system`]), a
//! diagram ([`diagram`]) and the pages on network and bandwidths ([`pages`]).

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

/// A node. Everything that could not be read is empty or left out, never guessed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its name in its configuration; `describe --name` sets it.
    pub node: String,
    /// Host name.
    pub host: String,
    /// Whose program wrote this.
    pub role: Role,
    /// That program's version.
    pub version: String,
    /// Distribution, as it names itself.
    pub operating_system: String,
    /// Release of the kernel.
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
    /// The GPUs' driver, and the newest CUDA that it serves.
    pub gpu_driver: String,
    /// Settings of the kernel's TCP, as `net.ipv4.tcp_rmem = …`.
    pub tcp: Vec<String>,
}

/// A program, by what it is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// LoadGen's.
    Frontend,
    /// The SUT's.
    #[default]
    Accelerator,
}

impl Role {
    /// Its name, as programs have it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Frontend => "frontend",
            Role::Accelerator => "accelerator",
        }
    }

    /// The description of a node of this role, below [`crate::layout::Tree::nodes`].
    pub fn file(self, node: &Name) -> String {
        format!("{}-{node}.json", self.name())
    }
}

/// Processors of a node, which are all alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Processors {
    /// Model name.
    pub model: String,
    /// Sockets.
    pub sockets: u32,
    /// Cores in each.
    pub cores_per_socket: u32,
    /// Hardware threads in all.
    pub threads: u32,
    /// The highest clock, in MHz.
    pub max_mhz: Option<u64>,
    /// Caches, as `L1 Data 32K`.
    pub caches: Vec<String>,
    /// NUMA nodes.
    pub numa_nodes: u32,
}

/// Memory of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Bytes that the kernel has.
    pub bytes: u64,
    /// Whether a controller corrects errors; none where the kernel does not say.
    pub ecc: Option<bool>,
    /// Modules, as `8 x 32768 MB DDR4`.
    pub modules: Vec<String>,
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    /// Its name: `nvme0n1`.
    pub name: String,
    /// Its model.
    pub model: String,
    /// Its size.
    pub bytes: u64,
    /// It turns.
    pub rotational: bool,
}

/// A NIC, or one port of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nic {
    /// The RDMA device's name, or the interface's.
    pub name: String,
    /// The interface over the same port.
    pub netdev: Option<String>,
    /// `Ethernet`, `InfiniBand`, `IEEE 802.11`, or what else it is.
    pub link_layer: String,
    /// It is an RDMA device.
    pub rdma: bool,
    /// What the card is, from its PCI ids.
    pub model: String,
    /// Its driver.
    pub driver: String,
    /// Its firmware.
    pub firmware: String,
    /// `copper` or `fiber`, where the port says so.
    pub media: Option<String>,
    /// Link speed, in Mbit/s.
    pub speed_mbps: Option<u64>,
    /// Longest packet, in bytes.
    pub mtu: Option<u64>,
    /// Addresses.
    pub addresses: Vec<String>,
    /// Its link is up.
    pub up: bool,
    /// Its PCI address.
    pub pci: Option<String>,
    /// Generation and width of its PCIe link, as `16.0 GT/s PCIe x16`.
    pub pcie: Option<String>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// What it is called.
    pub name: String,
    /// Its memory.
    pub bytes: u64,
    /// Whether its memory has ECC, and it is on; none where that is not known.
    pub ecc: Option<bool>,
    /// The highest clock of its cores, in MHz.
    pub max_mhz: Option<u64>,
    /// Its PCI address.
    pub pci: String,
    /// Its PCIe link, as `Gen5 x16`.
    pub pcie: Option<String>,
    /// NVLinks that are up.
    pub nvlinks: u32,
}

impl Node {
    /// This machine.
    ///
    /// # Errors
    /// [`TopologyError`]: what Linux must have is not there.
    pub fn of_this_machine(role: Role, version: &str) -> Result<Self, TopologyError> {
        let root = Path::new("/");
        let mut node = Self::with(root, &Topology::of_this_machine()?, role, version);
        nics::ask(&mut node.nics);
        gpus::ask(&mut node);
        Ok(node)
    }

    /// This machine as JSON, for a node of this name.
    ///
    /// # Errors
    /// What Linux must have is not there, in words.
    pub fn told(role: Role, version: &str, name: &str) -> Result<String, String> {
        let node = Self::of_this_machine(role, version).map_err(|e| e.to_string())?;
        let node = Node {
            node: name.to_owned(),
            ..node
        };
        serde_json::to_string(&node).map_err(|e| e.to_string())
    }

    /// The machine whose `proc`, `sys` and `etc` lie below `root`, without what has to be asked
    /// for: firmware of NICs, and names of GPUs.
    ///
    /// # Errors
    /// As [`of_this_machine`](Self::of_this_machine).
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

    /// Memory that has no ECC, or does not say so; one sentence each.
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

/// A small file's text without blanks around it; empty where it cannot be read.
fn text(root: &Path, file: &str) -> String {
    let text = fs::read_to_string(root.join(file)).unwrap_or_default();
    text.trim().to_owned()
}

/// A small file's number.
fn number(root: &Path, file: &str) -> Option<u64> {
    text(root, file).parse().ok()
}

#[cfg(test)]
mod tests;
