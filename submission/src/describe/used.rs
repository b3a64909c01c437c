//! The NICs of a node that carried samples, by its configuration, and their fabrics.

use std::{fmt, net::IpAddr};

use fabric::kinds::{FabricLayers, FoundNic, NicFabric, NicPlace};
use qdl::{config::NicConfig, topology};

use machine::{Nic, Node};

/// A NIC that carried samples.
#[derive(Clone, Debug, PartialEq)]
pub struct UsedNic {
    pub nic: Nic,
    pub fabric: NicFabric,
    /// Whether the connections' addresses are IPv6.
    pub is_v6: bool,
}

/// A machine with one or several nodes, and its NICs that carried samples.
#[derive(Clone, Debug, PartialEq)]
pub struct UsedNode {
    pub node: Node,
    /// Names of all nodes on the machine.
    pub names: Vec<String>,
    pub nics: Vec<UsedNic>,
    /// Whether the engine asks a server, which may have further machines.
    pub is_client: bool,
    /// Entries of `nics` in the configuration that no NIC of the description fits.
    pub missing: Vec<String>,
}

impl UsedNic {
    /// The layers, from `link` upwards.
    pub fn layers(&self, link: &str) -> FabricLayers {
        let ip = if self.is_v6 { "IPv6" } else { "IPv4" };
        self.fabric.layers(link, ip)
    }

    /// The library that posts the writes, with the node's version.
    pub fn library(&self, node: &Node) -> String {
        let facts = self.fabric.facts();
        let version = node.libraries.get(facts.library);
        let library = format!("{} {}", facts.library, version.map_or("", String::as_str));
        match (library.trim_end(), facts.provider) {
            (library, Some(provider)) => format!("{library} ({provider})"),
            (library, None) => library.to_owned(),
        }
    }
}

impl UsedNode {
    /// The NICs of `node` that a configuration's `nics` select. If they select none by name or
    /// address, all NICs whose link is up, except loopback, with the fabric of the first entry;
    /// `usual` without an entry.
    pub fn new(node: Node, nics: &[NicConfig], usual: &NicFabric) -> Self {
        let mut used = UsedNode {
            names: vec![node.node.clone()],
            is_client: false,
            nics: Vec::new(),
            missing: Vec::new(),
            node,
        };
        for (entry, name) in nics.iter().filter_map(|nic| Some((nic, selected(nic)?))) {
            let fabric = &entry.fabric;
            let found = used.node.nics.iter().filter(|nic| name.fits(nic, fabric));
            let found: Vec<_> = found.map(|nic| name.used(nic, fabric)).collect();
            if found.is_empty() {
                used.missing.push(name.to_string());
            }
            used.add(found);
        }
        let has_hardware = |nic: &NicConfig| nic.facts().place != NicPlace::NoHardware;
        if used.nics.is_empty() && (nics.is_empty() || nics.iter().any(has_hardware)) {
            let up = used.node.nics.iter();
            let up = up.filter(|nic| nic.up && nic.link_layer != "loopback");
            let any = NicName::Device(String::new());
            let fabric = nics.first().map_or(usual, |nic| &nic.fabric);
            used.nics = up.map(|nic| any.used(nic, fabric)).collect();
        }
        used
    }

    fn add(&mut self, nics: Vec<UsedNic>) {
        for one in nics {
            if self.nics.iter().all(|own| own.nic.name != one.nic.name) {
                self.nics.push(one);
            }
        }
    }

    /// Takes over the nodes of `other`, which runs on this machine.
    pub fn join(&mut self, other: UsedNode) {
        self.names.extend(other.names);
        self.missing.extend(other.missing);
        self.is_client |= other.is_client;
        self.add(other.nics);
        for gpu in other.node.gpus {
            if self.node.gpus.iter().all(|own| own.pci != gpu.pci) {
                self.node.gpus.push(gpu);
            }
        }
    }

    /// The ports that carried samples.
    pub fn ports(&self) -> impl Iterator<Item = &Nic> {
        self.nics.iter().flat_map(|used| used.nic.ports())
    }
}

/// How a configuration names a NIC.
enum NicName {
    Address(IpAddr),
    /// An RDMA device, or a network interface.
    Device(String),
    Pattern(String),
}

/// How an entry names its NIC. `None` for an entry that listens on all addresses, where the peer
/// chooses the NIC, and for one on loopback or without hardware.
fn selected(entry: &NicConfig) -> Option<NicName> {
    match (&entry.matching, entry.facts().place) {
        (Some(pattern), _) => Some(NicName::Pattern(pattern.clone())),
        (None, NicPlace::Device(device, _)) => Some(NicName::Device(device.to_owned())),
        (None, NicPlace::Address(ip)) if ip.is_unspecified() || ip.is_loopback() => None,
        (None, NicPlace::NoHardware) => None,
        (None, NicPlace::Address(ip)) => Some(NicName::Address(ip)),
    }
}

impl NicName {
    fn fits(&self, nic: &Nic, fabric: &NicFabric) -> bool {
        match self {
            NicName::Address(ip) => nic.addresses.iter().any(|own| own.parse() == Ok(*ip)),
            NicName::Device(device) => {
                [Some(&nic.name), nic.netdev.as_ref()].contains(&Some(device))
            }
            NicName::Pattern(pattern) => {
                let chosen = fabric.clone().choose(FoundNic {
                    name: &nic.name,
                    port: nic.rdma.then_some(1),
                    netdev: nic.netdev.as_deref(),
                    address: nic.addresses.first().and_then(|own| own.parse().ok()),
                });
                let fits = |name: &str| topology::fits(pattern, name);
                nic.up && chosen.is_some_and(|chosen| fits(&chosen) || fits(&nic.name))
            }
        }
    }

    fn used(&self, nic: &Nic, fabric: &NicFabric) -> UsedNic {
        UsedNic {
            nic: nic.clone(),
            fabric: fabric.clone(),
            is_v6: match self {
                NicName::Address(ip) => ip.is_ipv6(),
                _ => nic.addresses.first().is_some_and(|a| a.contains(':')),
            },
        }
    }
}

impl fmt::Display for NicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NicName::Address(ip) => ip.fmt(f),
            NicName::Device(name) | NicName::Pattern(name) => f.write_str(name),
        }
    }
}
