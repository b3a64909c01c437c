//! A node's facts about itself and its machine.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum length of a host name, in bytes.
pub const MAX_HOST: usize = 255;

/// Facts that each node sends to its peer once per session. JSON omits unknown facts.
///
/// `machine` and `boot` are for comparison only: keyed hashes keep the machine's ids private.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeFacts {
    /// Host name: at most [`MAX_HOST`] bytes.
    #[serde(default)]
    pub host: String,
    /// Hash of the machine-id: 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Hash of the kernel's boot-id: 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// Release of the program.
    #[serde(default)]
    pub version: String,
    /// Commit of the build, if the build recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// True if the build had uncommitted changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty: Option<bool>,
    /// SHA-256 of the program file: 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Start time of the program, in seconds since 1970.
    #[serde(default)]
    pub started: u64,
    /// Links of the entries of `nics` whose link is known before a connection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkFact>,
}

/// Link of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkFact {
    /// Index into the node's `nics`.
    pub nic: u16,
    /// Name of the network interface or device.
    pub name: String,
    /// Link layer.
    pub layer: LinkLayer,
}

/// A link layer, as far as the system reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkLayer {
    /// Ethernet on hardware.
    Ethernet,
    /// IEEE 802.11.
    Wireless,
    /// InfiniBand.
    InfiniBand,
    /// A 3GPP modem.
    Cellular,
    /// The machine itself.
    Loopback,
    /// Software: a bridge, one end of a veth pair, a tunnel. The carrier is unknown.
    Virtual,
    /// Hardware with another or unknown link layer.
    Unknown,
}

impl LinkLayer {
    /// Whether the Network division permits the layer: Ethernet, IEEE 802.11, InfiniBand, 3GPP.
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

impl NodeFacts {
    /// Whether both nodes are on one machine; `None` if unknown.
    ///
    /// Two live nodes with equal boot-ids share a kernel, whatever their addresses, network
    /// namespaces or containers. Two kernels are two machines, or guests that look like machines.
    /// The machine-id counts only without a boot-id: copied images share it, and containers have
    /// their own or none. Equal machine-ids mean one machine only with equal host names; different
    /// machine-ids mean two.
    pub fn same_machine(&self, other: &NodeFacts) -> Option<bool> {
        let machines = (&self.machine, &other.machine);
        match ((&self.boot, &other.boot), machines) {
            ((Some(a), Some(b)), _) => Some(a == b),
            (_, (Some(a), Some(b))) if a != b => Some(false),
            (_, (Some(_), Some(_))) if self.host == other.host => Some(true),
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
