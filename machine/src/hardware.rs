//! Describes processors, memory, disks and kernel settings from /proc, /sys and /etc.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use qdl::topology::Topology;

use disk::folders;

use super::{Disk, Memory, Processors, number, text};

/// Prefixes of block devices that are not physical disks.
const NO_DISKS: [&str; 8] = ["loop", "ram", "dm-", "zram", "md", "sr", "nbd", "fd"];
/// The kernel's TCP settings in a description.
const TCP: [&str; 6] = [
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/ipv4/tcp_slow_start_after_idle",
];

pub(super) fn operating_system(root: &Path) -> String {
    let text = text(root, "etc/os-release");
    let name = text.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="));
    name.unwrap_or_default().trim_matches('"').to_owned()
}

pub(super) fn processors(root: &Path, topology: &Topology) -> Processors {
    let info = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    let field = |block: &str, name: &str| {
        let mut fields = block.lines().filter_map(|line| line.split_once(':'));
        let found = fields.find(|(key, _)| key.trim() == name);
        found.map(|(_, value)| value.trim().to_owned())
    };
    let blocks = info.split("\n\n");
    let blocks = blocks.filter(|b| field(b, "processor").is_some());
    let blocks: Vec<_> = blocks.collect();
    let first = blocks.first().copied().unwrap_or_default();
    // ARM's cpuinfo has no "physical id": assume one socket.
    let sockets = blocks.iter().filter_map(|b| field(b, "physical id"));
    let sockets: BTreeSet<_> = sockets.collect();
    let sockets = sockets.len().max(usize::from(!blocks.is_empty()));
    let cores = field(first, "cpu cores").and_then(|n| n.parse().ok());
    let per_socket = blocks.len().checked_div(sockets).unwrap_or(0);
    let model = field(first, "model name").or(field(first, "CPU part"));
    let khz = number(root, "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
    Processors {
        model: model.unwrap_or_default(),
        sockets: small(sockets),
        cores_per_socket: cores.unwrap_or(small(per_socket)),
        threads: small(blocks.len()),
        max_mhz: khz.map(|khz| khz / 1000),
        caches: caches(root),
        numa_nodes: small(topology.nodes.len()),
    }
}

fn small(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn caches(root: &Path) -> Vec<String> {
    let base = "sys/devices/system/cpu/cpu0/cache";
    let all = folders(&root.join(base));
    let caches = all.iter().filter(|name| name.starts_with("index"));
    let caches = caches.map(|name| {
        let of = |what: &str| text(root, &format!("{base}/{name}/{what}"));
        format!("L{} {} {}", of("level"), of("type"), of("size"))
    });
    caches.collect()
}

pub(super) fn memory(root: &Path) -> Memory {
    let info = text(root, "proc/meminfo");
    let total = info.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    let kib = total.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    let base = "sys/devices/system/edac/mc";
    let controllers = folders(&root.join(base));
    let controllers = controllers.iter().filter(|n| n.starts_with("mc"));
    let mut modules: BTreeMap<String, usize> = BTreeMap::new();
    let mut modes = BTreeSet::new();
    for controller in controllers {
        let below = format!("{base}/{controller}");
        for part in folders(&root.join(&below)) {
            let of = |what: &str| text(root, &format!("{below}/{part}/{what}"));
            let (size, kind) = (of("size"), of("dimm_mem_type"));
            if !size.is_empty() && size != "0" {
                *modules.entry(format!("{size} MB {kind}")).or_default() += 1;
                modes.insert(of("dimm_edac_mode"));
            }
        }
    }
    // EDAC drivers list controllers that may correct errors; mode "None" means no correction.
    let ecc = (!modes.is_empty()).then(|| modes.iter().all(|m| m != "None" && !m.is_empty()));
    let modules = modules.iter().map(|(what, n)| format!("{n} x {what}"));
    Memory {
        bytes: kib.unwrap_or(0).saturating_mul(1024),
        ecc,
        modules: modules.collect(),
    }
}

pub(super) fn disks(root: &Path) -> Vec<Disk> {
    // `folders` follows the links in sys/block.
    let all = folders(&root.join("sys/block"));
    let is_disk = |name: &String| !NO_DISKS.iter().any(|no| name.starts_with(no));
    let disks = all.into_iter().filter(is_disk).map(|name| {
        let of = |what: &str| text(root, &format!("sys/block/{name}/{what}"));
        Disk {
            model: of("device/model"),
            // The kernel counts sectors of 512 bytes for every disk.
            bytes: of("size").parse::<u64>().unwrap_or(0).saturating_mul(512),
            rotational: of("queue/rotational") == "1",
            name,
        }
    });
    disks.filter(|d| d.bytes > 0).collect()
}

pub(super) fn tcp(root: &Path) -> Vec<String> {
    let all = TCP.iter().filter_map(|key| {
        let value = text(root, &format!("proc/sys/{key}"));
        let value: Vec<_> = value.split_whitespace().collect();
        let (key, value) = (key.replace('/', "."), value.join(" "));
        (!value.is_empty()).then(|| format!("{key} = {value}"))
    });
    all.collect()
}
