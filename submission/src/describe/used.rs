//! The NICs of a node that carried samples, by its configuration, and the layers of their fabric.

use qdl::topology;
use serde_json::Value;

use super::{Nic, Node};
use crate::error;

/// The fabric of a NIC's connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsedFabric {
    Tcp,
    Ib,
    /// A provider of libfabric, as `efa`.
    Ofi(String),
}

/// A NIC that carried samples.
#[derive(Clone, Debug, PartialEq)]
pub struct UsedNic {
    pub nic: Nic,
    pub fabric: UsedFabric,
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
        let of = |transport: &str, network: &str| FabricLayers {
            protocol: format!("{transport}/{network} over {link}"),
            transport: transport.to_owned(),
            network: network.to_owned(),
        };
        let rdma = || match link {
            "InfiniBand" => FabricLayers {
                protocol: "InfiniBand reliable connection (RC) over InfiniBand".to_owned(),
                ..of("reliable connections (RC)", "InfiniBand")
            },
            _ => FabricLayers {
                protocol: format!("RoCE v2 (RC over UDP/{ip}) over {link}"),
                ..of(
                    "reliable connections (RC)",
                    &format!("UDP and {ip}, as RoCE v2"),
                )
            },
        };
        let UsedFabric::Ofi(provider) = &self.fabric else {
            return match self.fabric {
                UsedFabric::Ib => rdma(),
                _ => of("TCP", ip),
            };
        };
        match provider.split(';').next().unwrap_or_default() {
            "tcp" | "net" | "sockets" => of("TCP", ip),
            "udp" => of("UDP", ip),
            "verbs" => rdma(),
            "efa" => of("SRD", "EFA"),
            "cxi" => of("Portals", "Slingshot"),
            "psm2" => of("PSM2", "Omni-Path"),
            "opx" => of("OPX", "Omni-Path"),
            "psm3" => of("PSM3", &format!("UDP/{ip}")),
            other => of(other, "layers that only its vendor names"),
        }
    }

    /// The library that posts the writes, with the node's version.
    pub fn library(&self, node: &Node) -> String {
        match &self.fabric {
            UsedFabric::Tcp => "kernel TCP".to_owned(),
            UsedFabric::Ib => "libibverbs".to_owned(),
            UsedFabric::Ofi(provider) => {
                let library = format!("libfabric {}", node.libfabric);
                format!("{} ({provider})", library.trim_end())
            }
        }
    }
}

impl UsedNode {
    /// The NICs that a configuration selects. If it selects none by name or address, all NICs whose
    /// link is up, except loopback, with the fabric named `fabric`.
    pub fn new(node: Node, yaml: &str, fabric: &str) -> Self {
        let config: Value = error::yaml(yaml).unwrap_or_default();
        let entries = config.get("nics").and_then(Value::as_array).cloned();
        let (mut nics, mut missing): (Vec<UsedNic>, _) = (Vec::new(), Vec::new());
        for entry in entries.unwrap_or_default() {
            let Some(entry) = NicEntry::new(&entry) else {
                continue;
            };
            let all = node.nics.iter().filter(|nic| entry.fits(nic));
            let found: Vec<_> = all.map(|nic| entry.used(nic)).collect();
            if found.is_empty() {
                missing.push(entry.label());
            }
            for one in found {
                if nics.iter().all(|known| known.nic.name != one.nic.name) {
                    nics.push(one);
                }
            }
        }
        if nics.is_empty() {
            let entry = NicEntry {
                fabric: match fabric {
                    "ib" => UsedFabric::Ib,
                    "ofi" => UsedFabric::Ofi("provider not known".to_owned()),
                    _ => UsedFabric::Tcp,
                },
                device: None,
                address: None,
                pattern: None,
            };
            let up = node.nics.iter();
            let up = up.filter(|nic| nic.up && nic.link_layer != "loopback");
            nics = up.map(|nic| entry.used(nic)).collect();
        }
        let engine = config.get("engine").and_then(|engine| engine.get("kind"));
        UsedNode {
            is_client: engine.and_then(Value::as_str) == Some("http"),
            names: vec![node.node.clone()],
            node,
            nics,
            missing,
        }
    }

    /// Takes over the nodes of `other`, which runs on this machine.
    pub fn join(&mut self, other: UsedNode) {
        self.names.extend(other.names);
        self.missing.extend(other.missing);
        self.is_client |= other.is_client;
        for one in other.nics {
            if self.nics.iter().all(|own| own.nic.name != one.nic.name) {
                self.nics.push(one);
            }
        }
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
    fabric: UsedFabric,
    /// Name of an RDMA device, or of a provider's domain.
    device: Option<String>,
    address: Option<String>,
    pattern: Option<String>,
}

impl NicEntry {
    /// `None` for an entry that listens on all addresses, where the peer chooses the NIC, or on
    /// loopback, which is none.
    fn new(entry: &Value) -> Option<Self> {
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        let of = |key: &str| {
            text(key)
                .filter(|value| !value.is_empty())
                .map(str::to_owned)
        };
        // Forms: 10.0.0.1, 10.0.0.1:7410, [fd00::1]:7410
        let address = of("address").or(of("listen")).map(|text| {
            let bracketed = text.strip_prefix('[').and_then(|a| a.split_once(']'));
            match bracketed {
                Some((v6, _)) => v6.to_owned(),
                None if text.matches(':').count() == 1 => {
                    text.split(':').next().unwrap_or_default().to_owned()
                }
                None => text,
            }
        });
        let (device, pattern) = (of("device").or(of("domain")), of("match"));
        let fabric = match of("ofi") {
            Some(provider) => UsedFabric::Ofi(provider),
            None if device.is_some() || pattern.is_some() => UsedFabric::Ib,
            None => UsedFabric::Tcp,
        };
        let ip = address.as_deref().map(parsed);
        let any = matches!(ip, Some(Ok(ip)) if ip.is_unspecified() || ip.is_loopback());
        let is_named = device.is_some() || pattern.is_some() || address.is_some() && !any;
        is_named.then_some(NicEntry {
            fabric,
            device,
            address,
            pattern,
        })
    }

    fn fits(&self, nic: &Nic) -> bool {
        // EFA's domain of `rdmap0s6` is `rdmap0s6-rdm`; socket providers' domains are interfaces.
        let domain = format!("{}-rdm", nic.name);
        let names = [Some(&nic.name), nic.netdev.as_ref(), Some(&domain)];
        let names = || names.iter().flatten();
        match (&self.pattern, &self.device, &self.address) {
            (Some(pattern), ..) => {
                let is_kind = nic.rdma || self.fabric != UsedFabric::Ib;
                nic.up && is_kind && names().any(|name| topology::fits(pattern, name))
            }
            (_, Some(device), _) => names().any(|name| *name == device),
            (.., Some(address)) => {
                let own = |own: &String| own == address || parsed(own) == parsed(address);
                nic.addresses.iter().any(own)
            }
            _ => false,
        }
    }

    fn used(&self, nic: &Nic) -> UsedNic {
        let address = self.address.as_ref().or(nic.addresses.first());
        UsedNic {
            nic: nic.clone(),
            fabric: self.fabric.clone(),
            is_v6: address.is_some_and(|a| a.contains(':')),
        }
    }

    fn label(&self) -> String {
        let all = [&self.pattern, &self.device, &self.address];
        let label = all.into_iter().flatten().next();
        label.cloned().unwrap_or_default()
    }
}

/// An IP address as a value. Two texts that are no addresses differ.
fn parsed(text: &str) -> Result<std::net::IpAddr, String> {
    text.parse().map_err(|_| text.to_owned())
}
