//! The emulated machines.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// Two CPUs. The kernel's veth pair joins its devices.
    Plain,
    /// Four CPUs on two NUMA nodes. Each node has two NICs joined by a cable: `va` and `vb` on node
    /// 1, `vc` and `vd` on node 0.
    TwoNodes,
}

/// NICs of the machine with two nodes: last digit of the MAC address, node, and cable.
const NICS: [(char, u32, u32); 4] = [('a', 1, 0), ('b', 1, 0), ('c', 0, 1), ('d', 0, 1)];

impl Machine {
    /// The emulator's arguments for CPUs, nodes and NICs, with `mib` MiB of memory.
    pub fn parts(self, mib: u64) -> Vec<String> {
        let mut parts = Vec::new();
        let mut add = |option: &str, value: String| parts.extend([option.to_owned(), value]);
        if self == Machine::Plain {
            add("-smp", "2".to_owned());
            return parts;
        }
        add("-smp", "4".to_owned());
        for node in 0..2 {
            // The nodes' memory must add up to the machine's.
            let size = if node == 0 { mib.div_ceil(2) } else { mib / 2 };
            let (first, last) = (2 * node, 2 * node + 1);
            add(
                "-object",
                format!("memory-backend-ram,id=memory{node},size={size}M"),
            );
            add(
                "-numa",
                format!("node,nodeid={node},cpus={first}-{last},memdev=memory{node}"),
            );
            // Only a host bridge of its own puts a device on a node.
            let bus = 64 * (node + 1);
            add(
                "-device",
                format!("pxb-pcie,id=bridge{node},bus_nr={bus},numa_node={node},bus=pcie.0"),
            );
        }
        for (slot, (nic, node, cable)) in NICS.into_iter().enumerate() {
            add(
                "-device",
                format!("pcie-root-port,id=port-{nic},bus=bridge{node},chassis=1,slot={slot}"),
            );
            add("-netdev", format!("hubport,id=end-{nic},hubid={cable}"));
            add(
                "-device",
                format!(
                    "virtio-net-pci,bus=port-{nic},netdev=end-{nic},mac=52:54:00:00:00:0{nic},romfile="
                ),
            );
        }
        parts
    }

    /// The function of `pair.sh` that creates the machine's RDMA devices.
    pub fn devices(self) -> &'static str {
        match self {
            Machine::Plain => "rdma_pair",
            Machine::TwoNodes => "rdma_nodes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_share_all_memory_and_each_nic_is_behind_its_nodes_bridge() {
        let parts = Machine::TwoNodes.parts(2049);
        let has = |text: &str| parts.iter().any(|p| p.starts_with(text));
        assert!(has("memory-backend-ram,id=memory0,size=1025M"), "{parts:?}");
        assert!(has("memory-backend-ram,id=memory1,size=1024M"), "{parts:?}");
        assert!(has("pcie-root-port,id=port-a,bus=bridge1,"), "{parts:?}");
        assert!(has("pcie-root-port,id=port-d,bus=bridge0,"), "{parts:?}");
        assert_eq!(Machine::Plain.parts(2048), ["-smp", "2"]);
    }
}
