//! What a node says of itself and of the machine that it runs on.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest host name, in bytes.
pub const MAX_HOST: usize = 255;

/// Facts of a node, told once in each session and put on record. What a node cannot find out is
/// left out.
///
/// `machine` and `boot` are no more than good for comparing: they are keyed hashes of the machine's
/// own ids, which are nobody else's business.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeFacts {
    /// Host name: at most [`MAX_HOST`] bytes.
    #[serde(default)]
    pub host: String,
    /// Hash of the machine-id: 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Hash of the boot-id of the kernel that runs it: 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// Release of the program.
    #[serde(default)]
    pub version: String,
    /// Commit that it was built from, where whoever built it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// True where that commit was not all that it was built from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty: Option<bool>,
    /// SHA-256 of the program's file: 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// When it was started, in seconds since 1970.
    #[serde(default)]
    pub started: u64,
    /// What each entry of its `nics` sends over, where that is settled before anybody connects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkFact>,
}

/// What a NIC sends over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkFact {
    /// Index into the node's `nics`.
    pub nic: u16,
    /// The network interface or device.
    pub name: String,
    /// Its link layer.
    pub layer: LinkLayer,
}

/// A link layer, as far as the system tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkLayer {
    /// Ethernet, on hardware.
    Ethernet,
    /// IEEE 802.11.
    Wireless,
    /// InfiniBand.
    InfiniBand,
    /// A modem's: 3GPP.
    Cellular,
    /// The machine itself.
    Loopback,
    /// Software: a bridge, one end of a pair, a tunnel. What carries it is not known.
    Virtual,
    /// Hardware whose link is none of the above, or is not known.
    Unknown,
}

impl LinkLayer {
    /// One of those that the Network division permits: Ethernet, IEEE 802.11, InfiniBand, 3GPP.
    pub const fn is_permitted(self) -> bool {
        matches!(
            self,
            LinkLayer::Ethernet | LinkLayer::Wireless | LinkLayer::InfiniBand | LinkLayer::Cellular
        )
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::Wireless => "IEEE 802.11",
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Cellular => "3GPP",
            LinkLayer::Loopback => "loopback",
            LinkLayer::Virtual => "a virtual interface",
            LinkLayer::Unknown => "a link layer that is not known",
        })
    }
}

/// By what two machines are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineIds<'a> {
    /// Host name.
    pub host: &'a str,
    /// Hash of the machine-id.
    pub machine: Option<&'a str>,
    /// Hash of the boot-id.
    pub boot: Option<&'a str>,
}

impl NodeFacts {
    /// By what its machine is told from others.
    pub fn ids(&self) -> MachineIds<'_> {
        MachineIds {
            host: &self.host,
            machine: self.machine.as_deref(),
            boot: self.boot.as_deref(),
        }
    }

    /// [`MachineIds::same`] of two nodes.
    pub fn same_machine(&self, other: &NodeFacts) -> Option<bool> {
        self.ids().same(&other.ids())
    }
}

impl MachineIds<'_> {
    /// Whether both are one machine; `None` where neither can be told.
    ///
    /// Two nodes that live at the same time and share a boot-id share a kernel, whatever their
    /// addresses, network namespaces or containers; two kernels are two machines, or guests that
    /// cannot be told from machines. A machine-id counts only where a boot-id is missing: images
    /// are copied with it, and containers have one of their own or none, so it needs the same host
    /// name beside it to say "the same", and another one says "another" by itself.
    pub fn same(&self, other: &MachineIds<'_>) -> Option<bool> {
        if let (Some(a), Some(b)) = (self.boot, other.boot) {
            return Some(a == b);
        }
        match (self.machine, other.machine) {
            (Some(a), Some(b)) if a != b => Some(false),
            (Some(_), Some(_)) if self.host == other.host => Some(true),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, machine: &str, boot: &str) -> NodeFacts {
        let some = |id: &str| (!id.is_empty()).then(|| id.to_owned());
        NodeFacts {
            host: host.to_owned(),
            machine: some(machine),
            boot: some(boot),
            ..NodeFacts::default()
        }
    }

    #[test]
    fn one_kernel_is_one_machine_and_a_copied_image_is_not() {
        let here = node("a", "m", "b");
        let same = |host, machine, boot| here.same_machine(&node(host, machine, boot));
        assert_eq!(same("a", "m", "b"), Some(true));
        assert_eq!(same("pod", "n", "b"), Some(true), "a container of its own");
        assert_eq!(same("pod", "", "b"), Some(true), "one without a machine-id");
        assert_eq!(same("a", "m", "c"), Some(false), "copied with its image");
        assert_eq!(same("a", "m", ""), Some(true));
        assert_eq!(same("c", "m", ""), None, "a copy, or a container");
        assert_eq!(same("a", "n", ""), Some(false));
        assert_eq!(same("a", "", ""), None);
    }
}
