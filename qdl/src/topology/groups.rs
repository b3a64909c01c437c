//! Assigns NICs to GPUs: each GPU gets its nearest NICs by PCIe path. GPUs with the same nearest
//! NICs divide them, so that no NIC serves two GPUs while another serves none.

use super::{Nearness, Topology};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NicGroup {
    /// Index of the GPU; `None` on a machine without GPUs.
    pub gpu: Option<usize>,
    /// NUMA node of the GPU or of the NICs, if known.
    pub numa: Option<u32>,
    pub nics: Vec<usize>,
    /// Distance class between the GPU and the NICs.
    pub nearness: Option<Nearness>,
}

impl Topology {
    /// Returns the indices of the NICs for samples: RDMA devices that are up or, without any,
    /// network interfaces that are up.
    pub(crate) fn usable_nics(&self) -> Vec<usize> {
        let up = |rdma: bool| {
            let nics = self.nics.iter().enumerate();
            let fits = nics.filter(move |(_, n)| n.up && n.is_rdma() == rdma);
            fits.map(|(i, _)| i).collect::<Vec<_>>()
        };
        let rdma = up(true);
        if rdma.is_empty() { up(false) } else { rdma }
    }

    /// Returns the NICs of each GPU; without GPUs, the NICs of each NUMA node.
    pub(crate) fn nic_groups(&self) -> Vec<NicGroup> {
        let usable = self.usable_nics();
        if self.gpus.is_empty() {
            return self.groups_by_node(&usable);
        }
        let near = |gpu: usize, nic: usize| self.nics[nic].place.nearness(&self.gpus[gpu].place);
        let nearest = |gpu: usize| {
            let best = usable.iter().map(|n| near(gpu, *n)).min();
            let as_near = |n: &&usize| Some(rank(near(gpu, **n))) == best.map(rank);
            (
                usable.iter().filter(as_near).copied().collect::<Vec<_>>(),
                best,
            )
        };
        let sets: Vec<_> = (0..self.gpus.len()).map(nearest).collect();
        let group = |gpu: usize| {
            let (set, nearness) = &sets[gpu];
            let sharing: Vec<_> = (0..sets.len()).filter(|g| sets[*g].0 == *set).collect();
            let mine = sharing.iter().position(|g| *g == gpu).unwrap_or(0);
            NicGroup {
                gpu: Some(gpu),
                numa: self.gpus[gpu].place.numa,
                nics: share(set, mine, sharing.len()),
                nearness: *nearness,
            }
        };
        (0..self.gpus.len()).map(group).collect()
    }

    fn groups_by_node(&self, usable: &[usize]) -> Vec<NicGroup> {
        let mut groups: Vec<NicGroup> = Vec::new();
        for nic in usable {
            let numa = self.nics[*nic].place.numa;
            match groups.iter_mut().find(|g| g.numa == numa) {
                Some(g) => g.nics.push(*nic),
                None => groups.push(NicGroup {
                    gpu: None,
                    numa,
                    nics: vec![*nic],
                    nearness: None,
                }),
            }
        }
        groups.sort_by_key(|g| g.numa);
        groups
    }

    /// Returns the GPU that a NIC serves; of several GPUs, the first.
    pub(crate) fn gpu_of(&self, nic: usize) -> Option<usize> {
        let mut groups = self.nic_groups().into_iter();
        groups.find(|g| g.nics.contains(&nic))?.gpu
    }
}

/// Merges distance classes that form one group: without a common switch, all paths of a NUMA node
/// go through the CPU, whichever host bridge they use.
fn rank(n: Nearness) -> Nearness {
    match n {
        Nearness::Phb => Nearness::Node,
        other => other,
    }
}

/// Returns the part of `set` for member `mine` of `of` members: contiguous and as equal as
/// possible. With fewer NICs than members, one shared NIC.
fn share(set: &[usize], mine: usize, of: usize) -> Vec<usize> {
    let n = set.len();
    if n < of {
        return set.get(mine * n / of).copied().into_iter().collect();
    }
    set[mine * n / of..(mine + 1) * n / of].to_vec()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Shares cover the set; with enough NICs they are disjoint, sizes differ by at most one.
        #[test]
        fn shares_are_even(n in 1usize..40, of in 1usize..12) {
            let set: Vec<_> = (0..n).collect();
            let shares: Vec<_> = (0..of).map(|m| share(&set, m, of)).collect();
            let sizes = || shares.iter().map(Vec::len);
            prop_assert!(sizes().all(|s| s > 0));
            let mut all = shares.concat();
            all.dedup();
            prop_assert_eq!(all, set);
            if n >= of {
                prop_assert_eq!(sizes().sum::<usize>(), n);
                prop_assert!(sizes().max() <= sizes().min().map(|s| s + 1));
            }
        }
    }
}
