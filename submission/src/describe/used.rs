//! The NICs of a node that carried samples, by its configuration, and the layers of their fabric.

use std::{fmt, net::IpAddr};

use qdl::{
    config::{NicConfig, NicPlace},
    topology,
};

use machine::{Nic, Node};

/// A NIC that carried samples.
#[derive(Clone, Debug, PartialEq)]
pub struct UsedNic {
    pub nic: Nic,
    /// `tcp`, `ib`, or libfabric's provider after `ofi `: `ofi efa`.
    pub fabric: String,
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

/// The layers of a fabric over one link layer.
pub struct FabricLayers {
    /// All layers in one, as `TCP/IPv4 over Ethernet`.
    pub protocol: String,
    pub transport: String,
    pub network: String,
}

impl UsedNic {
    /// The layers, from `link` upwards.
    pub fn layers(&self, link: &str) -> FabricLayers {
        let ip = if self.is_v6 { "IPv6" } else { "IPv4" };
        let roce = (
            format!("UDP and {ip}, as RoCE v2"),
            format!("RoCE v2 (RC over UDP/{ip}) over {link}"),
        );
        let infiniband = "InfiniBand reliable connection (RC) over InfiniBand";
        let base = self.fabric.split(';').next().unwrap_or_default();
        let (transport, network) = match base {
            "tcp" | "ofi tcp" | "ofi net" | "ofi sockets" => ("TCP", ip),
            "ib" | "ofi verbs" if link == "InfiniBand" => ("reliable connections (RC)", link),
            "ib" | "ofi verbs" => ("reliable connections (RC)", &*roce.0),
            "ofi udp" => ("UDP", ip),
            "ofi efa" => ("SRD", "EFA"),
            "ofi cxi" => ("Portals", "Slingshot"),
            "ofi psm2" => ("PSM2", "Omni-Path"),
            "ofi opx" => ("OPX", "Omni-Path"),
            other => (other, "layers that only its vendor names"),
        };
        FabricLayers {
            protocol: match (base, link) {
                ("ib" | "ofi verbs", "InfiniBand") => infiniband.to_owned(),
                ("ib" | "ofi verbs", _) => roce.1,
                _ => format!("{transport}/{network} over {link}"),
            },
            transport: transport.to_owned(),
            network: network.to_owned(),
        }
    }

    /// The library that posts the writes, with the node's version.
    pub fn library(&self, node: &Node) -> String {
        match self.fabric.strip_prefix("ofi ") {
            Some(provider) => {
                let library = format!("libfabric {}", node.libfabric);
                format!("{} ({provider})", library.trim_end())
            }
            None if self.fabric == "ib" => "libibverbs".to_owned(),
            None => "kernel TCP".to_owned(),
        }
    }
}

impl UsedNode {
    /// The NICs of `node` that a configuration's `nics` select. If they select none by name or
    /// address, all NICs whose link is up, except loopback, with the fabric named `fabric`.
    pub fn new(node: Node, nics: &[NicConfig], fabric: &str) -> Self {
        let mut used = UsedNode {
            names: vec![node.node.clone()],
            is_client: false,
            nics: Vec::new(),
            missing: Vec::new(),
            node,
        };
        for (fabric, name) in nics.iter().filter_map(selected) {
            let found = used.node.nics.iter().filter(|nic| name.fits(nic, &fabric));
            let found: Vec<_> = found.map(|nic| name.used(nic, &fabric)).collect();
            if found.is_empty() {
                used.missing.push(name.to_string());
            }
            used.add(found);
        }
        if used.nics.is_empty() {
            let up = used.node.nics.iter();
            let up = up.filter(|nic| nic.up && nic.link_layer != "loopback");
            let any = NicName::Device(String::new());
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

/// The fabric of an entry, as [`UsedNic`] names it, and how the entry names its NIC. `None` for an
/// entry that listens on all addresses, where the peer chooses the NIC, or on loopback, which is
/// none.
fn selected(entry: &NicConfig) -> Option<(String, NicName)> {
    let facts = entry.facts();
    let fabric = match facts.provider {
        Some(provider) => format!("{} {provider}", facts.fabric),
        None => facts.fabric.to_owned(),
    };
    let name = match (&entry.matching, facts.place) {
        (Some(pattern), _) => NicName::Pattern(pattern.clone()),
        (None, NicPlace::Device(device, _)) => NicName::Device(device.to_owned()),
        (None, NicPlace::Address(ip)) if ip.is_unspecified() || ip.is_loopback() => return None,
        (None, NicPlace::Address(ip)) => NicName::Address(ip),
    };
    Some((fabric, name))
}

impl NicName {
    fn fits(&self, nic: &Nic, fabric: &str) -> bool {
        // A pattern may fit EFA's domain of `rdmap0s6`, `rdmap0s6-rdm`.
        let domain = format!("{}-rdm", nic.name);
        let names = [Some(&nic.name), nic.netdev.as_ref(), Some(&domain)];
        let mut names = names.into_iter().flatten();
        match self {
            NicName::Address(ip) => nic.addresses.iter().any(|own| own.parse() == Ok(*ip)),
            NicName::Device(device) => names.any(|name| name == device),
            NicName::Pattern(pattern) => {
                let is_kind = nic.up && (nic.rdma || fabric != "ib");
                is_kind && names.any(|name| topology::fits(pattern, name))
            }
        }
    }

    fn used(&self, nic: &Nic, fabric: &str) -> UsedNic {
        UsedNic {
            nic: nic.clone(),
            fabric: fabric.to_owned(),
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
