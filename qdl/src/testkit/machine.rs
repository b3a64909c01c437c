//! Simulated machines: writes a sysfs tree from a text description.
//!
//! ```text
//! node 0 cpus=0-15                                     a NUMA node
//! pci pci0000:40/0000:40:01.1/0000:47:00.0 vendor=0x10de class=0x030200 numa=0
//!   ib mlx5_0 rate=200 link=InfiniBand state=ACTIVE netdev=ib0  below the PCI function before it
//!   net ib0 speed=200000 state=up addr=10.0.0.1                    addresses: comma between
//!   net virtio2/eth0 ...                                           a folder between
//! virtual net docker0 state=down addr=172.17.0.1 bridge
//! virtual ib rxe0 rate=10 link=Ethernet state=ACTIVE parent=eth0
//! ```
//!
//! `#` begins a comment. Bridges and switches need no lines: paths contain them.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use crate::topology::Addresses;

/// A DGX A100: 8 GPUs and 8 InfiniBand NICs, two of each below a switch, and one Ethernet NIC.
pub const DGX_A100: &str = include_str!("machines/dgx-a100.txt");
/// A machine like EC2's p5: 8 GPUs with 4 NICs each.
pub const P5: &str = include_str!("machines/p5.txt");
/// A server with two sockets: three NICs on one, one on the other, and a GPU on each.
pub const TWO_SOCKETS: &str = include_str!("machines/two-sockets.txt");
/// A laptop: a wireless NIC, a bridge for containers, and graphics that run no models.
pub const LAPTOP: &str = include_str!("machines/laptop.txt");

/// Writes the tree of `machine` into the existing folder `root`; returns the addresses.
///
/// # Errors
/// The line of the description and its problem.
pub fn expand(machine: &str, root: &Path) -> Result<Addresses, String> {
    let mut w = Writer {
        sys: root.join("sys"),
        addresses: Addresses::new(),
        function: None,
        nodes: BTreeMap::new(),
    };
    for (i, line) in machine.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<_> = line.split_whitespace().collect();
        w.line(&words)
            .map_err(|problem| format!("machine, line {}: {problem}", i + 1))?;
    }
    let text: String = w
        .addresses
        .iter()
        .map(|(name, list)| {
            let list: Vec<_> = list.iter().map(ToString::to_string).collect();
            format!("{name} {}\n", list.join(","))
        })
        .collect();
    fs::write(root.join("addresses"), text).map_err(|e| format!("addresses: {e}"))?;
    Ok(w.addresses)
}

struct Writer {
    sys: PathBuf,
    addresses: Addresses,
    /// The last PCI function, below `devices`.
    function: Option<PathBuf>,
    nodes: BTreeMap<String, String>,
}

/// The words `key=value` of a line; a word without `=` has an empty value.
struct Values<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Values<'a> {
    fn of(words: &[&'a str]) -> Self {
        Values(
            words
                .iter()
                .map(|w| w.split_once('=').unwrap_or((w, "")))
                .collect(),
        )
    }

    fn get(&self, key: &str, default: &'a str) -> &'a str {
        self.0.get(key).copied().unwrap_or(default)
    }
}

impl Writer {
    fn line(&mut self, words: &[&str]) -> Result<(), String> {
        let result = match words {
            [] => Ok(()),
            ["node", id, rest @ ..] => self.node(id, &Values::of(rest)),
            ["pci", path, rest @ ..] => self.pci(path, &Values::of(rest)),
            ["virtual", kind, name, rest @ ..] => {
                let parent = PathBuf::from("virtual");
                self.device(kind, &parent, name, &Values::of(rest))
            }
            [kind @ ("ib" | "net"), name, rest @ ..] => {
                let Some(parent) = self.function.clone() else {
                    return Err(format!("`{kind} {name}` comes before any `pci`"));
                };
                self.device(kind, &parent, name, &Values::of(rest))
            }
            [word, ..] => return Err(format!("`{word}` is not node, pci, ib, net or virtual")),
        };
        result.map_err(|e| e.to_string())
    }

    fn node(&mut self, id: &str, v: &Values<'_>) -> io::Result<()> {
        let cpus = v.get("cpus", "0");
        self.nodes.insert(id.to_owned(), cpus.to_owned());
        self.file(&format!("devices/system/node/node{id}/cpulist"), cpus)
    }

    fn pci(&mut self, path: &str, v: &Values<'_>) -> io::Result<()> {
        let dir = format!("devices/{path}");
        let function = PathBuf::from(path);
        let numa = v.get("numa", "-1");
        self.file(&format!("{dir}/vendor"), v.get("vendor", "0x15b3"))?;
        self.file(&format!("{dir}/class"), v.get("class", "0x020000"))?;
        self.file(&format!("{dir}/numa_node"), numa)?;
        let cpus = self.nodes.get(numa).cloned().unwrap_or_default();
        self.file(&format!("{dir}/local_cpulist"), &cpus)?;
        if let Some(name) = function.file_name() {
            self.link(&Path::new("bus/pci/devices").join(name), Path::new(&dir))?;
        }
        self.function = Some(function);
        Ok(())
    }

    fn device(&mut self, kind: &str, parent: &Path, name: &str, v: &Values<'_>) -> io::Result<()> {
        let (below, name) = name.rsplit_once('/').unwrap_or(("", name));
        let parent = Path::new("devices").join(parent).join(below);
        let class = if kind == "ib" { "infiniband" } else { "net" };
        let dir = parent.join(class).join(name);
        let at = |file: &str| dir.join(file).to_string_lossy().into_owned();
        if kind == "ib" {
            let rate = format!("{} Gb/sec", v.get("rate", "100"));
            self.file(
                &at("ports/1/state"),
                &format!("4: {}", v.get("state", "ACTIVE")),
            )?;
            self.file(&at("ports/1/rate"), &rate)?;
            self.file(&at("ports/1/link_layer"), v.get("link", "Ethernet"))?;
            if let Some(netdev) = v.0.get("netdev") {
                self.file(&at("ports/1/gid_attrs/ndevs/0"), netdev)?;
            }
            if let Some(parent) = v.0.get("parent") {
                self.file(&at("parent"), parent)?;
            }
        } else {
            self.file(&at("operstate"), v.get("state", "up"))?;
            self.file(&at("speed"), v.get("speed", "-1"))?;
            if v.0.contains_key("bridge") {
                self.file(&at("bridge/bridge_id"), "8000.000000000000")?;
            }
            let parse = |a: &str| {
                a.parse()
                    .map_err(|_| io::Error::other(format!("`{a}` is no address")))
            };
            let list = v.get("addr", "").split(',').filter(|a| !a.is_empty());
            let list = list.map(parse).collect::<io::Result<Vec<_>>>()?;
            self.addresses.insert(name.to_owned(), list);
        }
        if !parent.starts_with("devices/virtual") {
            self.link(&dir.join("device"), &parent)?;
        }
        self.link(&Path::new("class").join(class).join(name), &dir)
    }

    fn path(&self, path: &Path) -> io::Result<PathBuf> {
        let full = self.sys.join(path);
        if let Some(folder) = full.parent() {
            fs::create_dir_all(folder)?;
        }
        Ok(full)
    }

    fn file(&self, path: &str, text: &str) -> io::Result<()> {
        fs::write(self.path(Path::new(path))?, format!("{text}\n"))
    }

    /// Creates a link as in sysfs: relative to its own folder.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let up = from.components().count() - 1;
        let target: PathBuf = std::iter::repeat_n("..", up).collect::<PathBuf>().join(to);
        symlink(target, self.path(from)?)
    }
}
