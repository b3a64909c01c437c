//! Expands entries of `nics` with a `match` to one entry per NIC.
//!
//! ```text
//!   {ofi: efa, match: "rdmap*", group_by: gpu, slots: 64}
//!     {ofi: efa, domain: rdmap79s0-rdm, gpu: 0, slots: 64}       the first GPU's
//!     {ofi: efa, domain: rdmap80s0-rdm, gpu: 0, slots: 64}
//!     ...
//!     {ofi: efa, domain: rdmap95s0-rdm, gpu: 1, slots: 64}       the second's
//! ```
//!
//! NICs of two nodes are paired by position in `nics`. If both nodes use the same grouping, NIC *i*
//! of a group connects to NIC *i* of the peer's group.

use fabric::kinds::FoundNic;

use super::{Nic, NicKind, Topology, TopologyError};
use crate::config::{GroupBy, NicConfig, NicFabric};

/// Expands the entries of this machine's configuration, and returns each with the index of its
/// original entry. `feeds_gpus` is true for an accelerator. Reads the topology only for a `match`.
///
/// # Errors
/// [`TopologyError`] if an entry matches no NIC or the topology is unreadable; it names the entry.
pub fn spell_out(
    nics: &[NicConfig],
    feeds_gpus: bool,
) -> Result<Vec<(usize, NicConfig)>, TopologyError> {
    let Some(index) = nics.iter().position(|n| n.matching.is_some()) else {
        return Ok(nics.iter().cloned().enumerate().collect());
    };
    let machine = Topology::of_this_machine();
    let machine = machine.map_err(|e| TopologyError(format!("nics[{index}].match: {e}")))?;
    machine.spell_out(nics, feeds_gpus)
}

/// A NIC that an entry may stand for: its name in the entry's fabric, and the keys that name it.
struct NamedNic<'a> {
    nic: &'a Nic,
    name: String,
    fabric: NicFabric,
}

impl Topology {
    /// Expands entries as [`spell_out`] does, on this machine.
    ///
    /// # Errors
    /// [`TopologyError`] if an entry matches no NIC; it names the entry.
    pub fn spell_out(
        &self,
        nics: &[NicConfig],
        feeds_gpus: bool,
    ) -> Result<Vec<(usize, NicConfig)>, TopologyError> {
        let mut all = Vec::new();
        for (index, entry) in nics.iter().enumerate() {
            let each = match &entry.matching {
                Some(pattern) => self.each(index, entry, pattern, feeds_gpus)?,
                None => vec![entry.clone()],
            };
            all.extend(each.into_iter().map(|nic| (index, nic)));
        }
        Ok(all)
    }

    fn each(
        &self,
        index: usize,
        entry: &NicConfig,
        pattern: &str,
        feeds_gpus: bool,
    ) -> Result<Vec<NicConfig>, TopologyError> {
        let there = self.usable_nics_of(entry);
        let fitting = there.iter().filter(|n| {
            // Match the device's name or its domain's name.
            fits(pattern, &n.name) || fits(pattern, &n.nic.name)
        });
        let fitting: Vec<_> = fitting.collect();
        if fitting.is_empty() {
            let names: Vec<_> = there.iter().map(|n| n.name.as_str()).collect();
            let names = match names.is_empty() {
                true => "none".to_owned(),
                false => names.join(", "),
            };
            return Err(TopologyError(format!(
                "nics[{index}].match: {pattern:?} fits no {} of this machine that is up; there are \
                 {names}",
                entry.facts().hardware
            )));
        }
        let order = match entry.group_by {
            Some(GroupBy::Gpu) => self.by_gpu(&fitting),
            None => (0..fitting.len()).map(|i| (i, None)).collect(),
        };
        let one = |(i, gpu): (usize, Option<usize>)| {
            let mut one = NicConfig {
                matching: None,
                group_by: None,
                fabric: fitting[i].fabric.clone(),
                ..entry.clone()
            };
            if let (true, Some(gpu)) = (feeds_gpus, gpu) {
                one.gpu = Some(gpu as u32);
            }
            one
        };
        Ok(order.into_iter().map(one).collect())
    }

    /// Returns the NICs that are up and that the entry's fabric can use.
    fn usable_nics_of<'a>(&'a self, entry: &NicConfig) -> Vec<NamedNic<'a>> {
        let named = |nic: &'a Nic| {
            let Nic { name, netdev, .. } = nic;
            let mut fabric = entry.fabric.clone();
            let name = fabric.choose(FoundNic {
                name,
                port: match nic.kind {
                    NicKind::Rdma { port, .. } => Some(port),
                    NicKind::Tcp => None,
                },
                netdev: netdev.as_deref(),
                address: nic.addresses.first().copied(),
            })?;
            Some(NamedNic { nic, name, fabric })
        };
        self.nics
            .iter()
            .filter(|n| n.up)
            .filter_map(named)
            .collect()
    }

    /// Orders NICs by GPU; a NIC of several GPUs counts for the first GPU.
    fn by_gpu(&self, nics: &[&NamedNic<'_>]) -> Vec<(usize, Option<usize>)> {
        // Treat all NICs alike, so that grouping does not prefer RDMA devices to interfaces.
        let nics = nics.iter().map(|n| Nic {
            kind: NicKind::Tcp,
            ..n.nic.clone()
        });
        let these = Topology {
            nics: nics.collect(),
            ..self.clone()
        };
        let mut order: Vec<(usize, Option<usize>)> = Vec::new();
        for group in these.nic_groups() {
            for nic in group.nics {
                if order.iter().all(|(seen, _)| *seen != nic) {
                    order.push((nic, group.gpu));
                }
            }
        }
        // If a GPU is far from all NICs, some NICs may serve no GPU.
        for nic in 0..these.nics.len() {
            if order.iter().all(|(seen, _)| *seen != nic) {
                order.push((nic, None));
            }
        }
        order
    }
}

/// Whether a name fits a pattern: `*` matches any text, `?` any letter.
pub fn fits(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    loop {
        let rest = name.clone();
        match (pattern.next(), name.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                let pattern = pattern.as_str();
                let rest = rest.as_str();
                let ends = rest.char_indices().map(|(i, _)| i);
                return ends
                    .chain([rest.len()])
                    .any(|from| fits(pattern, &rest[from..]));
            }
            (Some('?'), Some(_)) => {}
            (Some(p), Some(n)) if p == n => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("rdmap*", "rdmap79s0", true),
            ("rdmap*", "rdma", false),
            ("rdmap?s0", "rdmap7s0", true),
            ("rdmap?s0", "rdmap79s0", false),
            ("*s0", "rdmap79s0", true),
            ("r*7*0", "rdmap79s0", true),
            ("r*7*1", "rdmap79s0", false),
            ("mlx5_0", "mlx5_0", true),
            ("mlx5_0", "mlx5_01", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }
}
