//! Describes NICs from `qdl::topology`, sysfs and ethtool's calls.

use std::{fs, path::Path};

use qdl::topology::{self, NicKind, PciAddress, Topology};
use record::LinkLayer;

use super::{Nic, ethtool, number, text};

/// Paths of the list of PCI vendors and devices, by distribution.
const PCI_IDS: [&str; 3] = [
    "usr/share/misc/pci.ids",
    "usr/share/hwdata/pci.ids",
    "usr/share/pci.ids",
];

pub(super) fn read(root: &Path, topology: &Topology) -> Vec<Nic> {
    let mut paths = PCI_IDS.iter().map(|file| root.join(file));
    let ids = paths.find_map(|path| fs::read_to_string(path).ok());
    let ids = ids.unwrap_or_default();
    let nics = topology.nics.iter();
    nics.map(|nic| one(root, &ids, nic)).collect()
}

fn one(root: &Path, ids: &str, nic: &topology::Nic) -> Nic {
    let netdev = match nic.kind {
        NicKind::Rdma { .. } => nic.netdev.clone(),
        NicKind::Tcp => Some(nic.name.clone()),
    };
    let below = netdev.iter().flat_map(|name| topology::members(root, name));
    let below: Vec<_> = below.collect();
    let itself = |(name, _): &(String, LinkLayer)| netdev.as_ref() == Some(name);
    let members = below.iter().filter(|one| !itself(one));
    let members = members.map(|(name, layer)| interface(root, ids, name, *layer));
    let members: Vec<Nic> = members.collect();
    let of_hardware = match &nic.kind {
        NicKind::Rdma { link_layer, .. } => Nic {
            link_layer: link_layer.clone(),
            ..card(root, ids, &format!("sys/class/infiniband/{}", nic.name))
        },
        NicKind::Tcp => match (members.first(), below.first()) {
            (None, Some((name, layer))) => interface(root, ids, name, *layer),
            (first, _) => first.cloned().unwrap_or_default(),
        },
    };
    let mtu = netdev.as_ref().map(|n| format!("sys/class/net/{n}/mtu"));
    Nic {
        name: nic.name.clone(),
        rdma: nic.is_rdma(),
        speed_mbps: nic.speed_mbps,
        mtu: mtu.and_then(|file| number(root, &file)),
        addresses: nic.addresses.iter().map(ToString::to_string).collect(),
        up: nic.up,
        pci: nic.place.address().map(|a| a.to_string()),
        netdev,
        members,
        ..of_hardware
    }
}

/// A hardware interface, without addresses.
fn interface(root: &Path, ids: &str, name: &str, layer: LinkLayer) -> Nic {
    let folder = format!("sys/class/net/{name}");
    let pci = fs::canonicalize(root.join(&folder).join("device")).ok();
    let pci = pci.and_then(|path| PciAddress::parse(path.file_name()?.to_str()?));
    Nic {
        name: name.to_owned(),
        netdev: Some(name.to_owned()),
        link_layer: match layer {
            LinkLayer::Virtual => "virtual".to_owned(),
            LinkLayer::Unknown => "unknown".to_owned(),
            layer => layer.to_string(),
        },
        speed_mbps: number(root, &format!("{folder}/speed")),
        up: text(root, &format!("{folder}/operstate")) != "down",
        pci: pci.map(|a| a.to_string()),
        ..card(root, ids, &folder)
    }
}

/// What sysfs reports of the card behind a device, an RDMA device or an interface.
fn card(root: &Path, ids: &str, of_device: &str) -> Nic {
    let device = format!("{of_device}/device");
    let driver = fs::read_link(root.join(&device).join("driver")).ok();
    let driver = driver.and_then(|d| Some(d.file_name()?.to_string_lossy().into_owned()));
    let link = |what: &str| text(root, &format!("{device}/current_link_{what}"));
    let (speed, width) = (link("speed"), link("width"));
    Nic {
        model: model(root, ids, of_device, &device),
        driver: driver.unwrap_or_default(),
        firmware: text(root, &format!("{of_device}/fw_ver")),
        pcie: (!speed.is_empty() && speed != "Unknown").then(|| format!("{speed} x{width}")),
        ..Nic::default()
    }
}

/// Name of a card from the list of PCI ids; if the list lacks the card, the card's ids.
fn model(root: &Path, ids: &str, of_device: &str, device: &str) -> String {
    let id = |what: &str| {
        let text = text(root, &format!("{device}/{what}"));
        text.strip_prefix("0x").map(str::to_owned)
    };
    let hca = text(root, &format!("{of_device}/hca_type"));
    let (Some(vendor), Some(card)) = (id("vendor"), id("device")) else {
        return hca;
    };
    let named = pci_name(ids, &vendor, &card);
    match (named, hca.is_empty()) {
        (Some(name), true) => name,
        (Some(name), false) => format!("{name} ({hca})"),
        (None, true) => format!("PCI {vendor}:{card}"),
        (None, false) => format!("{hca} (PCI {vendor}:{card})"),
    }
}

/// Names of vendor and card. In the list a vendor begins a line; tabs indent the vendor's cards.
fn pci_name(ids: &str, vendor: &str, card: &str) -> Option<String> {
    let mut lines = ids.lines();
    let of = |line: &str, id: &str| line.strip_prefix(id)?.strip_prefix("  ").map(str::to_owned);
    let vendor = lines.find_map(|line| of(line, vendor))?;
    let cards = lines.take_while(|line| line.starts_with('\t') || line.starts_with('#'));
    let mut cards = cards.filter(|line| !line.starts_with("\t\t"));
    let card = cards.find_map(|line| of(line.trim_start_matches('\t'), card))?;
    Some(format!("{vendor} {card}"))
}

/// Fills in what only the drivers of this machine's NICs report.
pub(super) fn ask(nics: &mut [Nic]) {
    for nic in nics {
        ask(&mut nic.members);
        let Some(netdev) = nic.netdev.as_deref() else {
            continue;
        };
        let (netdev, _) = topology::hardware(Path::new("/"), netdev);
        if nic.firmware.is_empty() {
            nic.firmware = ethtool::firmware(&netdev).unwrap_or_default();
        }
        nic.media = ethtool::media(&netdev).map(str::to_owned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_found_below_its_own_vendor() {
        let ids = "# a list\n15b3  Mellanox Technologies\n\t1021  MT2910 Family [ConnectX-7]\n\
                   \t\t15b3 0040  a subsystem\n\t1023  CX8\n8086  Intel\n\t1021  another\n";
        let name = |v: &str, c: &str| pci_name(ids, v, c);
        let seven = Some("Mellanox Technologies MT2910 Family [ConnectX-7]");
        assert_eq!(name("15b3", "1021").as_deref(), seven);
        assert_eq!(name("8086", "1021").as_deref(), Some("Intel another"));
        assert_eq!(name("8086", "1023"), None);
        assert_eq!(name("15b3", "0040"), None);
    }
}
