//! Links of NICs, as far as sysfs shows them: link layers, and whether a link is down.
//!
//! ```text
//!   sys/class/net/eth0/      type uevent device/driver wireless lower_eth1
//!   sys/class/infiniband/mlx5_2/ports/1/     state link_layer gid_attrs/ndevs/0
//! ```

use std::{
    ffi::c_short,
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use record::{LinkFact, LinkLayer};

use super::interface_addresses;
use crate::config::{NicConfig, NicPlace};

/// ARP hardware types of the kernel's `if_arp.h`.
const ETHERNET: u32 = 1;
const INFINIBAND: u32 = 32;
const RAW_IP: u32 = 519;
const LOOPBACK: u32 = 772;
const IEEE80211: std::ops::RangeInclusive<u32> = 801..=803;

/// Drivers of interfaces that report Ethernet but use PCIe or Thunderbolt.
const NO_ETHERNET: [&str; 2] = ["ntb_netdev", "thunderbolt-net"];

/// Maximum depth of stacked interfaces: a bond over VLANs over a bridge.
const DEEPEST: usize = 4;

/// Returns the link layer of each NIC. Leaves out a NIC that listens on all addresses: the peer's
/// choice of address determines its link.
pub(crate) fn links(nics: &[NicConfig]) -> Vec<LinkFact> {
    let each = nics.iter().zip(0u16..).filter_map(|(config, nic)| {
        let root = Path::new("/");
        let (name, layer) = match config.facts().place {
            NicPlace::Address(ip) if ip.is_unspecified() => return None,
            NicPlace::Address(ip) => of_address(root, ip),
            NicPlace::Device(name, port) => (name.to_owned(), of_device(root, name, port)),
            NicPlace::NoHardware => (config.facts().label, LinkLayer::Virtual),
        };
        Some(LinkFact { nic, name, layer })
    });
    each.collect()
}

/// Link of an RDMA device, or of the network interface whose name a provider uses.
fn of_device(root: &Path, name: &str, port: u8) -> LinkLayer {
    let is_interface = root.join("sys/class/net").join(name).exists();
    match of_port(root, name, port) {
        LinkLayer::Unknown if is_interface && !name.is_empty() => of_interface(root, name),
        layer => layer,
    }
}

fn of_address(root: &Path, address: IpAddr) -> (String, LinkLayer) {
    match LinkWatch::of_address(address).interface() {
        Some(name) => (name.to_owned(), of_interface(root, name)),
        // Loopback addresses such as 127.0.0.2 are in no interface's list.
        None if address.is_loopback() => ("lo".to_owned(), LinkLayer::Loopback),
        None => (address.to_string(), LinkLayer::Unknown),
    }
}

fn of_interface(root: &Path, name: &str) -> LinkLayer {
    hardware(root, name).1
}

/// Returns the hardware interface below a bond, VLAN or bridge, with its link layer: the first of
/// [`members`].
pub fn hardware(root: &Path, name: &str) -> (String, LinkLayer) {
    members(root, name).swap_remove(0)
}

/// Returns the hardware interfaces below a bond, VLAN or bridge that have a permitted link layer,
/// by name. Without such an interface, returns interface `name` itself.
pub fn members(root: &Path, name: &str) -> Vec<(String, LinkLayer)> {
    below(&root.join("sys/class/net"), name, 0)
}

fn below(class: &Path, name: &str, depth: usize) -> Vec<(String, LinkLayer)> {
    let folder = class.join(name);
    let text = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
    let uevent = text("uevent");
    let is = |kind: &str| uevent.lines().any(|l| l == format!("DEVTYPE={kind}"));
    let has = |file: &str| folder.join(file).exists();
    let own = match text("type").trim().parse::<u32>() {
        Err(_) => LinkLayer::Unknown,
        Ok(LOOPBACK) => LinkLayer::Loopback,
        Ok(INFINIBAND) => LinkLayer::InfiniBand,
        Ok(kind) if IEEE80211.contains(&kind) => LinkLayer::Wireless,
        Ok(ETHERNET | RAW_IP) if is("wwan") => LinkLayer::Cellular,
        Ok(ETHERNET) if is("wlan") || has("wireless") || has("phy80211") => LinkLayer::Wireless,
        Ok(ETHERNET) if has("device") => {
            let driver = fs::read_link(folder.join("device/driver")).unwrap_or_default();
            match NO_ETHERNET.iter().any(|d| driver.ends_with(d)) {
                true => LinkLayer::Unknown,
                false => LinkLayer::Ethernet,
            }
        }
        Ok(_) if has("device") => LinkLayer::Unknown,
        Ok(_) => LinkLayer::Virtual,
    };
    let mut lower = Vec::new();
    if !has("device") && depth < DEEPEST {
        let files = fs::read_dir(&folder).into_iter().flatten().flatten();
        let files = files.filter_map(|e| e.file_name().into_string().ok());
        lower.extend(files.filter_map(|file| Some(file.strip_prefix("lower_")?.to_owned())));
        lower.sort();
    }
    let lower = lower.iter().flat_map(|name| below(class, name, depth + 1));
    let permitted: Vec<_> = lower.filter(|(_, layer)| layer.is_permitted()).collect();
    match permitted.is_empty() {
        true => vec![(name.to_owned(), own)],
        false => permitted,
    }
}

/// Link layer of an RDMA device's port. A port over Ethernet has the layer of its network
/// interface, which may be virtual.
fn of_port(root: &Path, device: &str, port: u8) -> LinkLayer {
    let folder = root.join(format!("sys/class/infiniband/{device}/ports/{port}"));
    let text = |file: &str| fs::read_to_string(folder.join(file)).ok();
    match text("link_layer").as_deref().map(str::trim) {
        Some("InfiniBand") => LinkLayer::InfiniBand,
        Some("Ethernet") => match text("gid_attrs/ndevs/0").as_deref().map(str::trim) {
            Some(name) if root.join("sys/class/net").join(name).exists() => {
                of_interface(root, name)
            }
            _ => LinkLayer::Ethernet,
        },
        _ => LinkLayer::Unknown,
    }
}

/// Reads the link state of one NIC. An unreadable state does not count as down.
#[derive(Clone, Debug, Default)]
pub enum LinkWatch {
    /// Name of a network interface.
    Interface(String),
    /// Path of the `state` file of an RDMA device's port.
    Port(PathBuf),
    /// The caller's state: whether the link is down.
    Stated(Arc<AtomicBool>),
    /// No state is known.
    #[default]
    Unknown,
}

impl LinkWatch {
    /// Watches the link of a NIC.
    pub(crate) fn of_nic(nic: &NicConfig) -> Self {
        match nic.facts().place {
            NicPlace::Address(address) => Self::of_address(address),
            NicPlace::Device(device, port) => Self::of_port(device, port),
            NicPlace::NoHardware => Self::Unknown,
        }
    }

    /// Watches the network interface that has this address now.
    pub(crate) fn of_address(address: IpAddr) -> Self {
        let all = interface_addresses().unwrap_or_default();
        let mut with_it = all.into_iter().filter(|(_, list)| list.contains(&address));
        let interface = with_it.next().map(|(name, _)| Self::Interface(name));
        interface.unwrap_or(Self::Unknown)
    }

    pub(crate) fn of_port(device: &str, port: u8) -> Self {
        Self::Port(format!("/sys/class/infiniband/{device}/ports/{port}/state").into())
    }

    pub(crate) fn interface(&self) -> Option<&str> {
        match self {
            Self::Interface(name) => Some(name),
            Self::Port(_) | Self::Stated(_) | Self::Unknown => None,
        }
    }

    /// Whether the link is down; `None` if the state is unreadable. One to three system calls.
    pub(crate) fn is_down(&self) -> Option<bool> {
        match self {
            Self::Interface(name) => {
                let flags = i32::from(interface_flags(name).ok()?);
                Some(flags & libc::IFF_UP == 0 || flags & libc::IFF_RUNNING == 0)
            }
            Self::Port(path) => {
                // "4: ACTIVE"; 5 is ACTIVE_DEFER, which still completes transfers.
                let state = fs::read_to_string(path).ok()?;
                let number = state.split(':').next()?.trim().parse::<u8>().ok()?;
                Some(number < 4)
            }
            Self::Stated(is_down) => Some(is_down.load(Ordering::Relaxed)),
            Self::Unknown => None,
        }
    }
}

fn interface_flags(name: &str) -> io::Result<c_short> {
    // SAFETY: all-zero bytes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let socket = std::net::UdpSocket::bind(("127.0.0.1", 0))
        .or_else(|_| std::net::UdpSocket::bind(("::1", 0)))?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: `fd` is open during the call; the name in the request ends with a zero byte.
    if unsafe { libc::ioctl(fd, libc::SIOCGIFFLAGS, &mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the successful call has written the flags.
    Ok(unsafe { request.ifr_ifru.ifru_flags })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_layer_is_what_the_hardware_has() {
        let root = tempfile::tempdir().expect("a folder");
        let put = |file: &str, text: &str| {
            let path = root.path().join("sys/class").join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        let net = |name: &str, kind: u32, uevent: &str, device: Option<&str>| {
            put(&format!("net/{name}/type"), &format!("{kind}\n"));
            put(&format!("net/{name}/uevent"), uevent);
            if let Some(driver) = device {
                put(&format!("net/{name}/device/vendor"), "0x15b3\n");
                let link = root.path().join("sys/class/net").join(name);
                symlink(format!("../drivers/{driver}"), link.join("device/driver"))
                    .expect("a link");
            }
        };
        net("lo", 772, "", None);
        net("eth0", 1, "INTERFACE=eth0\n", Some("mlx5_core"));
        net("ib0", 32, "", Some("mlx5_core"));
        net("wlp2s0", 1, "DEVTYPE=wlan\n", Some("iwlwifi"));
        net("wwan0", 519, "DEVTYPE=wwan\n", Some("mhi"));
        net("veth1", 1, "", None);
        net("tun0", 65534, "", None);
        net("pcie0", 1, "", Some("ntb_netdev"));
        net("odd0", 24, "", Some("firewire"));
        net("bond0", 1, "DEVTYPE=bond\n", None);
        put("net/bond0/lower_eth0", "");
        net("vlan7", 1, "DEVTYPE=vlan\n", None);
        put("net/vlan7/lower_bond0", "");
        net("br0", 1, "DEVTYPE=bridge\n", None);
        put("net/br0/lower_veth1", "");
        net("br1", 1, "DEVTYPE=bridge\n", None);
        put("net/br1/lower_a_veth", "");
        put("net/br1/lower_bond0", "");
        net("loop0", 1, "", None);
        put("net/loop0/lower_loop0", "");
        for (name, layer) in [
            ("lo", LinkLayer::Loopback),
            ("eth0", LinkLayer::Ethernet),
            ("ib0", LinkLayer::InfiniBand),
            ("wlp2s0", LinkLayer::Wireless),
            ("wwan0", LinkLayer::Cellular),
            ("veth1", LinkLayer::Virtual),
            ("tun0", LinkLayer::Virtual),
            ("pcie0", LinkLayer::Unknown),
            ("odd0", LinkLayer::Unknown),
            ("vlan7", LinkLayer::Ethernet),
            ("br0", LinkLayer::Virtual),
            ("loop0", LinkLayer::Virtual),
            ("none", LinkLayer::Unknown),
        ] {
            assert_eq!(of_interface(root.path(), name), layer, "{name}");
        }
        for (name, on) in [("vlan7", "eth0"), ("br1", "eth0"), ("br0", "br0")] {
            assert_eq!(hardware(root.path(), name).0, on);
        }
        net("eth1", 1, "", Some("mlx5_core"));
        put("net/bond0/lower_eth1", "");
        let ports = members(root.path(), "vlan7");
        assert_eq!(
            ports,
            ["eth0", "eth1"].map(|n| (n.to_owned(), LinkLayer::Ethernet))
        );
        let port = |device: &str, layer: &str, netdev: &str| {
            put(&format!("infiniband/{device}/ports/1/link_layer"), layer);
            put(
                &format!("infiniband/{device}/ports/1/gid_attrs/ndevs/0"),
                netdev,
            );
            of_port(root.path(), device, 1)
        };
        assert_eq!(port("mlx5_0", "InfiniBand\n", ""), LinkLayer::InfiniBand);
        assert_eq!(port("mlx5_1", "Ethernet\n", "eth0\n"), LinkLayer::Ethernet);
        assert_eq!(port("rxe0", "Ethernet\n", "veth1\n"), LinkLayer::Virtual);
        assert_eq!(port("rxe1", "Ethernet\n", "lo\n"), LinkLayer::Loopback);
        assert_eq!(port("odd", "OmniPath\n", ""), LinkLayer::Unknown);
        assert_eq!(of_port(root.path(), "none", 1), LinkLayer::Unknown);
    }

    #[test]
    fn loopback_is_loopback_here_too() {
        let of = |a: &str| of_address(Path::new("/"), a.parse().expect("an address")).1;
        assert_eq!(of("127.0.0.1"), LinkLayer::Loopback);
        assert_eq!(of("127.0.0.2"), LinkLayer::Loopback);
        assert_eq!(of("192.0.2.77"), LinkLayer::Unknown);
    }

    #[test]
    fn loopback_is_up_and_what_is_not_there_is_not_known() {
        let loopback = LinkWatch::of_address(IpAddr::from([127, 0, 0, 1]));
        assert_eq!(loopback.interface(), Some("lo"));
        assert_eq!(loopback.is_down(), Some(false));
        let none = LinkWatch::of_address(IpAddr::from([192, 0, 2, 77]));
        assert_eq!(none.is_down(), None);
        assert_eq!(LinkWatch::of_port("no_such_device", 1).is_down(), None);
    }
}
