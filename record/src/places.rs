//! Where a node's NIC threads run and its memory lies: what came of `numa:` and `cpus:`.

use serde::{Deserialize, Serialize};

/// One NIC's thread and the memory of its connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicPlace {
    /// Its place in the configuration, and its address or device: `nics[0] mlx5_0:1`.
    pub nic: String,
    /// The NUMA node that everything of it is to be on; `None` where that is left to the system.
    pub node: Option<u32>,
    /// Cores that its thread may run on, as the kernel writes them.
    pub cpus: String,
    /// Nodes that the memory its connections' slots and responses are in lies on; empty where the
    /// system does not say.
    pub slots: Vec<u32>,
}

/// Where things are, as the system says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Places {
    /// NUMA nodes of the machine.
    pub nodes: usize,
    /// Each NIC.
    pub nics: Vec<NicPlace>,
    /// Nodes that loaded samples lie on; empty on an accelerator, and where the system does not
    /// say.
    pub samples: Vec<u32>,
}
