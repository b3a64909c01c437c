//! The NICs of a node that carried samples, by its configuration, and the layers of their fabric.

use std::net::IpAddr;

use qdl::topology;
use serde_json::Value;

use super::{Nic, Node};
use crate::error;

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
    /// The NICs that a configuration selects. If it selects none by name or address, all NICs whose
    /// link is up, except loopback, with the fabric named `fabric`.
    pub fn new(node: Node, yaml: &str, fabric: &str) -> Self {
        let config: Value = error::yaml(yaml).unwrap_or_default();
        let engine = config.get("engine").and_then(|engine| engine.get("kind"));
        let mut used = UsedNode {
            names: vec![node.node.clone()],
            is_client: engine.and_then(Value::as_str) == Some("http"),
            nics: Vec::new(),
            missing: Vec::new(),
            node,
        };
        let entries = config.get("nics").and_then(Value::as_array);
        for entry in entries.into_iter().flatten().filter_map(NicEntry::new) {
            let found: Vec<_> = used
                .node
                .nics
                .iter()
                .filter(|nic| entry.fits(nic))
                .collect();
            let found: Vec<_> = found.into_iter().map(|nic| entry.used(nic)).collect();
            if found.is_empty() {
                used.missing.push(entry.name.clone());
            }
            used.add(found);
        }
        if used.nics.is_empty() {
            let entry = NicEntry {
                fabric: fabric.to_owned(),
                name: String::new(),
                is_pattern: false,
            };
            let up = used
                .node
                .nics
                .iter()
                .filter(|nic| nic.up && nic.link_layer != "loopback");
            used.nics = up.map(|nic| entry.used(nic)).collect();
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

/// An entry of `nics` in a configuration.
struct NicEntry {
    fabric: String,
    /// An address, a device, a provider's domain, or a pattern of names.
    name: String,
    is_pattern: bool,
}

impl NicEntry {
    /// `None` for an entry that listens on all addresses, where the peer chooses the NIC, or on
    /// loopback, which is none.
    fn new(entry: &Value) -> Option<Self> {
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        let of = |key: &str| text(key).filter(|value| !value.is_empty());
        // Forms: 10.0.0.1, 10.0.0.1:7410, [fd00::1]:7410
        let address = of("address").or(of("listen")).map(|text| {
            let bracketed = text.strip_prefix('[').and_then(|a| a.split_once(']'));
            let with_port = text.split_once(':').filter(|(_, port)| !port.contains(':'));
            bracketed.or(with_port).map_or(text, |(address, _)| address)
        });
        let ip = address.and_then(|text| text.parse::<IpAddr>().ok());
        let no_nic = |ip: IpAddr| ip.is_unspecified() || ip.is_loopback();
        let address = address.filter(|_| !ip.is_some_and(no_nic));
        let (device, pattern) = (of("device").or(of("domain")), of("match"));
        Some(NicEntry {
            fabric: match (of("ofi"), device.or(pattern)) {
                (Some(provider), _) => format!("ofi {provider}"),
                (None, Some(_)) => "ib".to_owned(),
                (None, None) => "tcp".to_owned(),
            },
            name: pattern.or(device).or(address)?.to_owned(),
            is_pattern: pattern.is_some(),
        })
    }

    fn fits(&self, nic: &Nic) -> bool {
        // EFA's domain of `rdmap0s6` is `rdmap0s6-rdm`; socket providers' domains are interfaces.
        let domain = format!("{}-rdm", nic.name);
        let mut names = [Some(&nic.name), nic.netdev.as_ref(), Some(&domain)]
            .into_iter()
            .flatten();
        if self.is_pattern {
            let is_kind = nic.rdma || self.fabric != "ib";
            return nic.up && is_kind && names.any(|name| topology::fits(&self.name, name));
        }
        let ip = |text: &String| text.parse::<IpAddr>().ok();
        let same =
            |own: &String| *own == self.name || ip(own).is_some() && ip(own) == ip(&self.name);
        names.any(|name| *name == self.name) || nic.addresses.iter().any(same)
    }

    fn used(&self, nic: &Nic) -> UsedNic {
        let of_entry = Some(&self.name).filter(|name| name.parse::<IpAddr>().is_ok());
        let address = of_entry.or(nic.addresses.first());
        UsedNic {
            nic: nic.clone(),
            fabric: self.fabric.clone(),
            is_v6: address.is_some_and(|a| a.contains(':')),
        }
    }
}
