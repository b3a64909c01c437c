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

impl Places {
    /// For people: nothing where there is but one node.
    pub fn lines(&self) -> Vec<String> {
        if self.nodes < 2 {
            return Vec::new();
        }
        let mut lines: Vec<String> = self.nics.iter().map(NicPlace::line).collect();
        if !self.samples.is_empty() {
            lines.push(format!("samples on {}", on(&self.samples)));
        }
        lines
    }
}

impl NicPlace {
    fn line(&self) -> String {
        let wanted = match self.node {
            Some(node) => format!("node {node}"),
            None => "any node".to_owned(),
        };
        let slots = on(&self.slots);
        let NicPlace { nic, cpus, .. } = self;
        format!("{nic}: {wanted}; thread on cores {cpus}, slots on {slots}")
    }
}

fn on(nodes: &[u32]) -> String {
    let names: Vec<_> = nodes.iter().map(u32::to_string).collect();
    match names.as_slice() {
        [] => "unknown nodes".to_owned(),
        [only] => format!("node {only}"),
        several => format!("nodes {}", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_is_not_worth_a_line_and_two_are() {
        let nic = |nic: &str, node, slots: &[u32]| NicPlace {
            nic: nic.to_owned(),
            node,
            cpus: "2-3".to_owned(),
            slots: slots.to_vec(),
        };
        let mut places = Places {
            nodes: 1,
            nics: vec![
                nic("nics[0] rxa:1", Some(1), &[1]),
                nic("nics[1] lo", None, &[]),
            ],
            samples: vec![0, 1],
        };
        assert!(places.lines().is_empty());
        places.nodes = 2;
        assert_eq!(
            places.lines(),
            [
                "nics[0] rxa:1: node 1; thread on cores 2-3, slots on node 1",
                "nics[1] lo: any node; thread on cores 2-3, slots on unknown nodes",
                "samples on nodes 0, 1",
            ]
        );
    }
}
