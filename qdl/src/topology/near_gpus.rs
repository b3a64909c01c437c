//! Finds the GPUs nearest to a NIC by the PCIe tree.

use std::fmt;

use super::{Nearness, Topology};

/// One of the nearest GPUs of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearGpu {
    /// Index of the GPU, in the order of the PCIe bus.
    pub index: usize,
    /// Distance class.
    pub nearness: Nearness,
}

impl fmt::Display for NearGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU{} ({})", self.index, self.nearness.letters())
    }
}

/// Returns the GPUs nearest to an RDMA device: all at the same distance; none for a device that is
/// not on the PCIe bus.
pub fn nearest_gpus(machine: &Topology, device: &str) -> Vec<NearGpu> {
    let nic = machine
        .nics
        .iter()
        .find(|n| n.is_rdma() && n.name == device && n.place.address().is_some());
    let Some(nic) = nic else {
        return Vec::new();
    };
    let gpus = machine.gpus.iter().enumerate();
    let all: Vec<_> = gpus
        .map(|(index, gpu)| NearGpu {
            index,
            nearness: nic.place.nearness(&gpu.place),
        })
        .collect();
    let best = all.iter().map(|g| g.nearness).min();
    all.into_iter()
        .filter(|g| Some(g.nearness) == best)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::machine::{DGX_A100, LAPTOP, TWO_SOCKETS, expand};

    fn machine(text: &str) -> Topology {
        let root = tempfile::tempdir().expect("a folder");
        let addresses = expand(text, root.path()).expect("a machine");
        Topology::read(root.path(), &addresses).expect("read")
    }

    #[test]
    fn the_nearest_gpus_are_those_below_the_nics_switch() {
        let dgx = machine(DGX_A100);
        let mut all = Vec::new();
        for nic in dgx.nics.iter().filter(|n| n.is_rdma()) {
            let near = nearest_gpus(&dgx, &nic.name);
            assert_eq!(near.len(), 2, "two below each switch: {near:?}");
            assert!(
                matches!(near[0].nearness.letters(), "PIX" | "PXB"),
                "{near:?}"
            );
            all.extend(near.iter().map(|g| g.index));
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, (0..8).collect::<Vec<_>>());
        let two = machine(TWO_SOCKETS);
        for nic in two.nics.iter().filter(|n| n.is_rdma()) {
            assert_eq!(nearest_gpus(&two, &nic.name).len(), 1, "{}", nic.name);
        }
        assert_eq!(nearest_gpus(&machine(LAPTOP), "mlx5_0"), []);
    }
}
