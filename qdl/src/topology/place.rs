//! A device's position in the PCIe tree, and the distance of two devices.
//!
//! sysfs shows a device's position as the path down from its host bridge:
//!
//! ```text
//!   pci0000:40 / 0000:40:01.1 / 0000:41:00.0 / 0000:42:04.0 / 0000:47:00.0
//!   host bridge  root port      switch, up     switch, down   the device
//! ```
//!
//! The distance of two devices depends on the point at which their paths divide. Below one switch,
//! a peer-to-peer copy stays in the switch; below one host bridge, it goes through the CPU's root
//! complex; between two NUMA nodes, it crosses the link between the sockets.

use std::{fmt, path::Path};

use super::CpuList;

/// Address of a PCI function: domain, bus, device, function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl PciAddress {
    /// Parses `0000:47:00.0`; `None` if malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<_> = text.split([':', '.']).collect();
        let [domain, bus, device, function] = parts[..] else {
            return None;
        };
        if domain.len() < 4 || (bus.len(), device.len(), function.len()) != (2, 2, 1) {
            return None;
        }
        let number = |part| u8::from_str_radix(part, 16).ok();
        Some(PciAddress {
            domain: u32::from_str_radix(domain, 16).ok()?,
            bus: number(bus)?,
            device: number(device)?,
            function: number(function)?,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl serde::Serialize for PciAddress {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Position of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PciPlace {
    /// Host bridge, such as `pci0000:40`; empty for a device not on PCI.
    pub host_bridge: String,
    /// Addresses from the root port down to the device.
    pub path: Vec<PciAddress>,
    /// NUMA node, if reported.
    pub numa: Option<u32>,
    /// Cores near the device.
    pub cpus: CpuList,
}

/// Distance class of two devices, nearest first, with the letters of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Nearness {
    Same,
    Pix,
    /// Over several switches, below the same root port.
    Pxb,
    /// Over the same host bridge.
    Phb,
    /// Between host bridges of the same NUMA node.
    Node,
    /// Between NUMA nodes.
    Sys,
}

impl Nearness {
    pub(crate) fn letters(self) -> &'static str {
        match self {
            Nearness::Same => "X",
            Nearness::Pix => "PIX",
            Nearness::Pxb => "PXB",
            Nearness::Phb => "PHB",
            Nearness::Node => "NODE",
            Nearness::Sys => "SYS",
        }
    }
}

/// Maximum number of functions below a common switch: its downstream port and the device.
const ONE_SWITCH: usize = 2;

impl PciPlace {
    /// Parses a path below `/sys/devices`; leaves NUMA node and cores unset.
    pub(crate) fn of(path: &Path) -> PciPlace {
        let mut place = PciPlace::default();
        for part in path.iter().filter_map(|p| p.to_str()) {
            if let Some(address) = PciAddress::parse(part) {
                place.path.push(address);
            } else if part.starts_with("pci") && part.contains(':') {
                part.clone_into(&mut place.host_bridge);
            } else if !place.path.is_empty() {
                // Below the PCI function: virtio2, net, infiniband.
                break;
            }
        }
        place
    }

    /// Returns the device's PCI address.
    pub fn address(&self) -> Option<PciAddress> {
        self.path.last().copied()
    }

    /// Returns the distance class to another device.
    pub(crate) fn nearness(&self, other: &PciPlace) -> Nearness {
        let (Some(a), Some(b)) = (self.address(), other.address()) else {
            return self.by_numa(other);
        };
        let card = |a: PciAddress| (a.domain, a.bus, a.device);
        if card(a) == card(b) && self.host_bridge == other.host_bridge {
            return Nearness::Same;
        }
        if self.host_bridge != other.host_bridge {
            return self.by_numa(other);
        }
        let shared = self
            .path
            .iter()
            .zip(&other.path)
            .take_while(|(a, b)| a == b)
            .count();
        if shared == 0 {
            Nearness::Phb
        } else if self.path.len() - shared <= ONE_SWITCH && other.path.len() - shared <= ONE_SWITCH
        {
            Nearness::Pix
        } else {
            Nearness::Pxb
        }
    }

    fn by_numa(&self, other: &PciPlace) -> Nearness {
        match (self.numa, other.numa) {
            (Some(a), Some(b)) if a != b => Nearness::Sys,
            _ => Nearness::Node,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(path: &str, numa: u32) -> PciPlace {
        PciPlace {
            numa: Some(numa),
            ..PciPlace::of(Path::new(path))
        }
    }

    #[test]
    fn nearness_is_where_the_paths_part() {
        let gpu = place(
            "/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:04.0/0000:47:00.0",
            1,
        );
        assert_eq!(gpu.address(), PciAddress::parse("0000:47:00.0"));
        let cases = [
            (
                "pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:04.0/0000:47:00.1/net/eth5",
                1,
                Nearness::Same,
            ),
            (
                "pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:08.0/0000:4b:00.0",
                1,
                Nearness::Pix,
            ),
            (
                "pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:0c.0/0000:4d:00.0/0000:4e:00.0/0000:54:00.0",
                1,
                Nearness::Pxb,
            ),
            (
                "pci0000:40/0000:40:03.1/0000:61:00.0/virtio2/net/eth0",
                1,
                Nearness::Phb,
            ),
            ("pci0000:60/0000:60:01.1/0000:61:00.0", 1, Nearness::Node),
            ("pci0000:a0/0000:a0:01.1/0000:a1:00.0", 3, Nearness::Sys),
            ("virtual/net/bond0", 1, Nearness::Node),
            ("virtual/net/bond0", 0, Nearness::Sys),
        ];
        for (path, numa, expected) in cases {
            let other = place(path, numa);
            assert_eq!(gpu.nearness(&other), expected, "{path}");
            assert_eq!(other.nearness(&gpu), expected, "{path}, the other way");
        }
    }

    proptest! {
        #[test]
        fn addresses_survive_being_written(
            domain in 0u32..0x20000,
            bus: u8,
            device in 0u8..32,
            function in 0u8..8,
        ) {
            let a = PciAddress { domain, bus, device, function };
            prop_assert_eq!(PciAddress::parse(&a.to_string()), Some(a));
        }

        #[test]
        fn reading_never_panics(text in "[0-9a-f:./pci]{0,24}") {
            let _ = PciAddress::parse(&text);
            let _ = PciPlace::of(Path::new(&text));
        }
    }
}
