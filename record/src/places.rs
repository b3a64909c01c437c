//! NUMA places of a node's NIC threads and memory: the effect of `numa:` and `cpus:`.

use serde::{Deserialize, Serialize};

/// Place of one NIC's thread and of its connections' memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicPlace {
    /// The NIC's key in the configuration, and its address or device: `nics[0] mlx5_0:1`.
    pub nic: String,
    /// NUMA node for the NIC's thread and memory; `None` if the system chooses.
    pub node: Option<u32>,
    /// Cores that the thread may run on, in the kernel's notation.
    pub cpus: String,
    /// NUMA nodes of the memory of slots and responses; empty if the system does not report them.
    pub slots: Vec<u32>,
}

/// Places on a node, as the system reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Places {
    /// Number of NUMA nodes of the machine.
    pub nodes: usize,
    /// Each NIC.
    pub nics: Vec<NicPlace>,
    /// NUMA nodes of the loaded samples; empty on an accelerator, and if the system does not report
    /// them.
    pub samples: Vec<u32>,
}
