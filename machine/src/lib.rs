//! Describes the machine of a node from Linux, nvidia-smi and `qdl::topology`: [`Node`]. `describe`
//! of both programs prints it, an accelerator sends it to its frontend, and a submission has it.

#![allow(missing_docs, reason = "a field without a doc is what its name says")]

mod command;
mod ethtool;
mod gpus;
mod hardware;
mod nics;

use std::{collections::BTreeMap, fs, path::Path};

use fabric::kinds::{EachFabric, NicFabric};
use qdl::topology::{Topology, TopologyError};
use serde::{Deserialize, Serialize};

pub use command::DescribeArgs;

/// A node's description. A field that could not be read is empty or `None`, never guessed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// The node's name in its configuration; `describe --name` sets it.
    pub node: String,
    pub host: String,
    /// The program that wrote the description.
    pub role: Role,
    pub version: String,
    pub operating_system: String,
    pub kernel: String,
    pub processors: Processors,
    pub memory: Memory,
    pub disks: Vec<Disk>,
    /// NICs that can carry samples.
    pub nics: Vec<Nic>,
    pub gpus: Vec<Gpu>,
    /// The GPUs' driver, with the newest CUDA version that it supports.
    pub gpu_driver: String,
    /// Versions of the fabrics' libraries, by name; without those that tell none.
    pub libraries: BTreeMap<String, String>,
    /// The kernel's TCP settings, as `net.ipv4.tcp_rmem = …`.
    pub tcp: Vec<String>,
}

/// Collects the versions of the fabrics' libraries.
struct Libraries<'a>(&'a mut BTreeMap<String, String>);

impl EachFabric for Libraries<'_> {
    fn visit<K: Default>(&mut self, _: &'static str, make: fn(K) -> NicFabric) {
        let fabric = make(K::default());
        let version = fabric.library_version();
        let library = fabric.facts().library.to_owned();
        self.0.extend(version.map(|version| (library, version)));
    }
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

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Role::Frontend => "frontend",
            Role::Accelerator => "accelerator",
        })
    }
}

/// The processors of a node, assumed identical.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Processors {
    pub model: String,
    pub sockets: u32,
    pub cores_per_socket: u32,
    pub threads: u32,
    pub max_mhz: Option<u64>,
    /// Caches of CPU 0, as `L1 Data 32K`.
    pub caches: Vec<String>,
    pub numa_nodes: u32,
}

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

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    /// Kernel name, as `nvme0n1`.
    pub name: String,
    pub model: String,
    pub bytes: u64,
    pub rotational: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nic {
    /// Name of the RDMA device, else of the interface.
    pub name: String,
    /// The network interface of the same port.
    pub netdev: Option<String>,
    /// `Ethernet`, `InfiniBand`, `IEEE 802.11`, or another link layer.
    pub link_layer: String,
    pub rdma: bool,
    /// Name of the card, from its PCI ids.
    pub model: String,
    pub driver: String,
    pub firmware: String,
    /// `copper` or `fiber`, if the port reports it.
    pub media: Option<String>,
    /// Link speed, in Mbit/s.
    pub speed_mbps: Option<u64>,
    /// Maximum packet size, in bytes.
    pub mtu: Option<u64>,
    pub addresses: Vec<String>,
    pub up: bool,
    pub pci: Option<String>,
    /// Generation and width of the PCIe link, as `16.0 GT/s PCIe x16`.
    pub pcie: Option<String>,
    /// The hardware interfaces below a bond, a VLAN or a bridge.
    pub members: Vec<Nic>,
}

impl Nic {
    /// The ports that carry the NIC's bytes: its members, else the NIC itself.
    pub fn ports(&self) -> &[Nic] {
        match &self.members[..] {
            [] => std::slice::from_ref(self),
            members => members,
        }
    }

    /// Name of one of [`Nic::ports`], as `bond0 (eth1)`.
    pub fn titled(&self, port: &Nic) -> String {
        match self.name == port.name {
            true => self.name.clone(),
            false => format!("{} ({})", self.name, port.name),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    pub name: String,
    pub bytes: u64,
    /// Whether ECC of the GPU's memory is on; `None` if unknown.
    pub ecc: Option<bool>,
    /// Maximum clock of the GPU's cores, in MHz.
    pub max_mhz: Option<u64>,
    pub pci: String,
    /// Generation and width of the PCIe link, as `PCIe Gen5 x16`.
    pub pcie: Option<String>,
}

impl Gpu {
    /// The GPU's name if its driver reports the GPU; empty if only the PCIe bus does.
    pub fn reported(&self) -> &str {
        if self.bytes > 0 { &self.name } else { "" }
    }
}

impl Node {
    pub fn of_this_machine(role: Role, version: &str) -> Result<Self, TopologyError> {
        let root = Path::new("/");
        let mut node = Self::with(root, &Topology::of_this_machine()?, role, version);
        nics::ask(&mut node.nics);
        gpus::ask(&mut node);
        NicFabric::each(&mut Libraries(&mut node.libraries));
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

    /// Reads the description that a session with the node `name` in this role has brought.
    ///
    /// # Errors
    /// The text is no description, or one of another node or role.
    pub fn of_session(sent: &str, role: Role, name: &str) -> Result<Self, String> {
        let node: Node =
            serde_json::from_str(sent).map_err(|e| format!("{name}'s description is none: {e}"))?;
        match node.node == name && node.role == role {
            true => Ok(node),
            false => Err(format!(
                "{name} is the session's {role}, and its description is of {:?}, {}",
                node.node, node.role
            )),
        }
    }

    /// Describes the machine whose `proc`, `sys` and `etc` lie below `root`. The description lacks
    /// what only a driver reports: NIC firmware and media, and facts of GPUs.
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
            libraries: BTreeMap::new(),
            tcp: hardware::tcp(root),
        }
    }

    /// Names of the fields that differ from the node's own description, `own`. Where
    /// `own` does not report ECC, this description's value, the submitter's, counts.
    pub fn differences(&self, own: &Node) -> Vec<String> {
        let mut own = own.clone();
        own.memory.ecc = own.memory.ecc.or(self.memory.ecc);
        for (gpu, said) in own.gpus.iter_mut().zip(&self.gpus) {
            gpu.ecc = gpu.ecc.or(said.ecc);
        }
        let fields = |node| serde_json::to_value(node).unwrap_or_default();
        let (said, own) = (fields(self), fields(&own));
        let said = said.as_object().into_iter().flatten();
        let differing = said.filter(|(key, value)| own.get(key) != Some(value));
        differing.map(|(key, _)| key.clone()).collect()
    }

    /// One sentence for each kind of memory without ECC, or with unknown ECC.
    pub fn without_ecc(&self) -> Vec<String> {
        let gpu = self.gpus.iter().find(|gpu| gpu.ecc != Some(true));
        let gpu = gpu.map(|gpu| (format!("the memory of {}", gpu.name), gpu.ecc));
        let all = [Some(("host memory".to_owned(), self.memory.ecc)), gpu];
        let sentence = |(what, ecc)| match ecc {
            Some(true) => None,
            Some(false) => Some(format!("{what} has no ECC, or it is off")),
            None => Some(format!(
                "{what} does not report whether it has ECC: set host_memory_ecc or \
                 accelerator_memory_ecc in the form"
            )),
        };
        all.into_iter().flatten().filter_map(sentence).collect()
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
