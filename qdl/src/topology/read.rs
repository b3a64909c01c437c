//! Reads the topology from sysfs.
//!
//! ```text
//!   sys/devices/pci0000:40/../0000:4b:00.0/        vendor class numa_node local_cpulist
//!       infiniband/mlx5_2/ports/1/                 state rate link_layer gid_attrs/ndevs/0
//!       net/ib2/                                   operstate speed
//!   sys/class/infiniband/mlx5_2                    a link to the folder above; so are
//!   sys/class/net/ib2                              this
//!   sys/bus/pci/devices/0000:4b:00.0               and this
//!   sys/devices/virtual/{net,infiniband}           what has no hardware: bridges, soft-RoCE
//! ```
//!
//! A device's position comes from the real path of its link, not from its `device` entry: a virtio
//! NIC's entry leads to `virtio2`, and a soft-RoCE device has no entry.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    Addresses, CpuList, Gpu, Nic, NicKind, NumaNode, PciAddress, PciPlace, Topology, TopologyError,
    interface_addresses,
};

/// PCI class of display controllers, in the upper byte.
const DISPLAY: u32 = 0x03;
const ACCELERATOR: u32 = 0x12;
/// Vendors whose GPUs run models: NVIDIA and AMD.
const VENDORS: [u16; 2] = [0x10de, 0x1002];

impl Topology {
    /// Reads this machine's topology.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn of_this_machine() -> Result<Self, TopologyError> {
        let addresses = interface_addresses();
        let addresses =
            addresses.map_err(|e| TopologyError(format!("the addresses of this machine: {e}")))?;
        Self::read(Path::new("/"), &addresses)
    }

    /// Reads the topology of the machine whose `sys` is below `root`. Missing devices are left out;
    /// a malformed file counts as missing.
    ///
    /// # Errors
    /// [`TopologyError`] if `sys/devices` is missing.
    pub fn read(root: &Path, addresses: &Addresses) -> Result<Self, TopologyError> {
        let sys = root.join("sys");
        let devices = sys.join("devices");
        fs::read_dir(&devices).map_err(|e| {
            let path = devices.display();
            TopologyError(format!(
                "{path}: {e}; is sysfs mounted there, and is this the right root directory?"
            ))
        })?;
        let reader = Reader {
            nodes: read_nodes(&devices),
            sys,
        };
        let mut nics = reader.rdma(addresses);
        nics.extend(reader.tcp(addresses, &nics));
        Ok(Topology {
            gpus: reader.gpus(),
            nics,
            nodes: reader.nodes,
        })
    }
}

/// Reads a short text file without surrounding white space; `None` if unreadable or empty.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn hex(path: &Path) -> Option<u32> {
    u32::from_str_radix(text(path)?.trim_start_matches("0x"), 16).ok()
}

/// Sorted names in a folder; empty if the folder does not exist.
fn names(path: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    let name = |e: io::Result<fs::DirEntry>| e.ok()?.file_name().into_string().ok();
    let mut names: Vec<_> = entries.filter_map(name).collect();
    // eth10 sorts after eth9.
    names.sort_by_key(|n| natural(n));
    names
}

fn natural(name: &str) -> (String, u64, String) {
    let digits = name
        .find(|c: char| c.is_ascii_digit())
        .unwrap_or(name.len());
    let (head, rest) = name.split_at(digits);
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let number = rest[..end].parse().unwrap_or(0);
    (head.to_owned(), number, rest[end..].to_owned())
}

fn read_nodes(devices: &Path) -> Vec<NumaNode> {
    let folder = devices.join("system/node");
    let mut nodes: Vec<NumaNode> = names(&folder)
        .iter()
        .filter_map(|name| {
            let id = name.strip_prefix("node")?.parse().ok()?;
            let cpus = text(&folder.join(name).join("cpulist")).unwrap_or_default();
            let cpus = CpuList::parse(&cpus).unwrap_or_default();
            Some(NumaNode { id, cpus })
        })
        .collect();
    nodes.sort_by_key(|n| n.id);
    if nodes.is_empty() {
        // A kernel without NUMA.
        let cpus = text(&devices.join("system/cpu/online")).unwrap_or_default();
        let cpus = CpuList::parse(&cpus).unwrap_or_default();
        nodes.push(NumaNode { id: 0, cpus });
    }
    nodes
}

struct Reader {
    sys: PathBuf,
    nodes: Vec<NumaNode>,
}

impl Reader {
    /// PCI place of the device that `link`, an entry of a folder of `/sys/class`, points to.
    fn place(&self, link: &Path) -> PciPlace {
        let real = fs::canonicalize(link).unwrap_or_default();
        let mut place = PciPlace::of(&real);
        let address_of = |p: &Path| PciAddress::parse(p.file_name()?.to_str()?);
        let is_function = |p: &&Path| place.path.last().copied() == address_of(p);
        let function = real.ancestors().find(is_function);
        if let Some(f) = function.filter(|_| !place.path.is_empty()) {
            // The file holds -1 if the firmware reports no node; the parser then returns `None`.
            place.numa = text(&f.join("numa_node")).and_then(|n| n.parse().ok());
            let cpus = text(&f.join("local_cpulist")).and_then(|c| CpuList::parse(&c).ok());
            place.cpus = cpus.unwrap_or_default();
        }
        if let (None, [only]) = (place.numa, &self.nodes[..]) {
            place.numa = Some(only.id);
        }
        if place.cpus.is_empty()
            && let Some(node) = self.nodes.iter().find(|n| Some(n.id) == place.numa)
        {
            place.cpus = node.cpus.clone();
        }
        place
    }

    fn rdma(&self, addresses: &Addresses) -> Vec<Nic> {
        let class = self.sys.join("class/infiniband");
        let mut nics = Vec::new();
        for name in names(&class) {
            let device = class.join(&name);
            let mut place = self.place(&device);
            for port in names(&device.join("ports")) {
                let Ok(number) = port.parse::<u8>() else {
                    continue;
                };
                let dir = device.join("ports").join(&port);
                // "4: ACTIVE"
                let up = text(&dir.join("state")).is_some_and(|s| s.ends_with("ACTIVE"));
                let netdev = self.netdev(&device, &dir);
                if place.path.is_empty()
                    && let Some(n) = &netdev
                {
                    // Soft-RoCE has the position of its network interface.
                    place = self.place(&self.sys.join("class/net").join(n));
                }
                // "200 Gb/sec (4X HDR)", "2.5 Gb/sec (1X SDR)"
                let speed = text(&dir.join("rate")).and_then(|r| {
                    let gbit: f64 = r.split_whitespace().next()?.parse().ok()?;
                    Some((gbit * 1000.0) as u64)
                });
                let own = netdev.as_ref().and_then(|n| addresses.get(n));
                nics.push(Nic {
                    kind: NicKind::Rdma {
                        port: number,
                        link_layer: text(&dir.join("link_layer")).unwrap_or_default(),
                    },
                    addresses: own.cloned().unwrap_or_default(),
                    netdev,
                    speed_mbps: speed,
                    up,
                    place: place.clone(),
                    name: name.clone(),
                });
            }
        }
        nics.sort_by_key(by_bus);
        nics
    }

    fn netdev(&self, device: &Path, port: &Path) -> Option<String> {
        let by_gid = || text(&port.join("gid_attrs/ndevs/0"));
        let by_parent = || text(&device.join("parent"));
        let by_card = || names(&device.join("device/net")).into_iter().next();
        by_gid().or_else(by_parent).or_else(by_card)
    }

    /// Reads network interfaces that have an address and are not on an RDMA device's port.
    fn tcp(&self, addresses: &Addresses, rdma: &[Nic]) -> Vec<Nic> {
        let class = self.sys.join("class/net");
        let mut nics: Vec<Nic> = names(&class)
            .into_iter()
            .filter(|name| !rdma.iter().any(|n| n.netdev.as_ref() == Some(name)))
            .filter_map(|name| {
                let dir = class.join(&name);
                let list = addresses.get(&name)?;
                // A bridge's traffic uses other interfaces, or stays on the machine.
                if list.is_empty()
                    || list.iter().any(|a| a.is_loopback())
                    || dir.join("bridge").exists()
                {
                    return None;
                }
                let state = text(&dir.join("operstate")).unwrap_or_default();
                Some(Nic {
                    kind: NicKind::Tcp,
                    netdev: Some(name.clone()),
                    addresses: list.clone(),
                    speed_mbps: text(&dir.join("speed")).and_then(|s| s.parse().ok()),
                    // Some drivers report no state.
                    up: matches!(state.as_str(), "up" | "unknown"),
                    place: self.place(&dir),
                    name,
                })
            })
            .collect();
        nics.sort_by_key(by_bus);
        nics
    }

    fn gpus(&self) -> Vec<Gpu> {
        let bus = self.sys.join("bus/pci/devices");
        let mut gpus: Vec<Gpu> = names(&bus)
            .iter()
            .filter_map(|name| {
                let device = bus.join(name);
                let class = hex(&device.join("class"))? >> 16;
                let vendor = u16::try_from(hex(&device.join("vendor"))?).ok()?;
                ((class == DISPLAY || class == ACCELERATOR) && VENDORS.contains(&vendor)).then(
                    || Gpu {
                        vendor,
                        place: self.place(&device),
                    },
                )
            })
            .collect();
        gpus.sort_by_key(|g| g.place.address());
        gpus
    }
}

/// Sort key: position on the PCIe bus, with devices that are not on the bus last; then name.
fn by_bus(nic: &Nic) -> (bool, Option<PciAddress>, (String, u64, String)) {
    let address = nic.place.address();
    (address.is_none(), address, natural(&nic.name))
}
