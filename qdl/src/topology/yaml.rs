//! A configuration to begin with: every NIC of this machine, each with its GPU. Threads and memory
//! lie on the NIC's own NUMA node by default, so the files name none.
//!
//! The files start both programs as they are, with the `digest` engine, which takes any bytes: the
//! first thing to find out is whether bytes get across. Such a run is VALID as it is
//! ([`FIRST_RUN`]). Model, data set and the other node's address are what is left to fill in.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{FIRST_RUN, Nic, NicKind, Topology, fill_template};

/// How NICs are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fabric {
    /// RDMA where there is a device that is up, TCP where there is none.
    #[default]
    Auto,
    /// TCP over every interface with an address, those of RDMA devices included.
    Tcp,
}

/// Port of the control plane.
const CONTROL_PORT: u16 = 7400;
/// Port of the first NIC's connections; the others follow.
const DATA_PORT: u16 = 7410;
/// Queue pairs to a NIC.
const QUEUE_PAIRS: usize = 4;
/// Largest sample that the files are made for, in bytes: ResNet-50's.
const SAMPLE_BYTES: usize = 150_528;
/// Slots of a connection, in MiB, at one end; and a budget that needs no mention.
const MIB_PER_CONNECTION: usize = 64;
const DEFAULT_BUDGET_MIB: usize = 4096;

/// A NIC as it goes into a file.
struct Entry<'a> {
    nic: Option<&'a Nic>,
    /// Index in the topology.
    index: usize,
    /// Address for sockets; `None` for RDMA.
    address: Option<IpAddr>,
}

impl Topology {
    /// Configuration of a frontend on this machine.
    pub fn frontend_yaml(&self, node: &str, fabric: Fabric) -> String {
        let template = include_str!("templates/frontend.yaml");
        let mut y = self.yaml(template, node, fabric, |e| {
            Some(format!("address: {}", e.address?))
        });
        y.push('\n');
        y.push_str(FIRST_RUN);
        y
    }

    /// Configuration of an accelerator on this machine.
    pub fn accelerator_yaml(&self, node: &str, fabric: Fabric) -> String {
        let mut ports = DATA_PORT..;
        let template = include_str!("templates/accelerator.yaml");
        self.yaml(template, node, fabric, |e| {
            let listen = SocketAddr::new(e.address?, ports.next()?);
            Some(format!("listen: \"{listen}\""))
        })
    }

    fn yaml(
        &self,
        template: &str,
        node: &str,
        fabric: Fabric,
        mut socket: impl FnMut(&Entry<'_>) -> Option<String>,
    ) -> String {
        let entries = self.entries(fabric);
        let control = self.control_address(&entries);
        let budget = entries.len() * QUEUE_PAIRS * 2 * MIB_PER_CONNECTION;
        let up = self.nics.iter().filter(|n| n.up).count();
        let (gpus, nodes) = (self.gpus.len(), self.nodes.len());
        let nics: String = entries
            .iter()
            .map(|e| self.nic_yaml(e, &mut socket))
            .collect();
        let if_true = |is: bool, text: String| if is { text } else { String::new() };
        let values = [
            ("node", allowed_name(node, "node")),
            (
                "found",
                format!("{up} NIC(s) up, {gpus} GPU(s), {nodes} NUMA node(s)"),
            ),
            ("auth", if_true(!control.is_loopback(), "none".to_owned())),
            ("bytes", SAMPLE_BYTES.to_string()),
            (
                "control",
                SocketAddr::new(control, CONTROL_PORT).to_string(),
            ),
            (
                "budget",
                if_true(budget > DEFAULT_BUDGET_MIB, budget.to_string()),
            ),
            ("nics", nics),
        ];
        fill_template(template, 0, &values)
    }

    fn nic_yaml(
        &self,
        e: &Entry<'_>,
        socket: &mut impl FnMut(&Entry<'_>) -> Option<String>,
    ) -> String {
        let mut keys = Vec::new();
        match e.nic.map(|n| (&n.kind, n)) {
            Some((NicKind::Rdma { port, .. }, n)) if e.address.is_none() => {
                keys.extend([format!("device: {}", n.name), format!("port: {port}")]);
                keys.push(format!("queue_pairs: {QUEUE_PAIRS}"));
                keys.extend(self.gpu_of(e.index).map(|g| format!("gpu: {g}")));
            }
            _ => keys.extend(socket(e)),
        }
        format!("  - {}\n", keys.join("\n    "))
    }

    /// NICs that go into a file. Without any, this machine can talk to itself.
    fn entries(&self, fabric: Fabric) -> Vec<Entry<'_>> {
        let chosen: Vec<(usize, Option<IpAddr>)> = match fabric {
            Fabric::Auto => self
                .usable_nics()
                .into_iter()
                .map(|i| (i, self.socket_address(i)))
                .collect(),
            Fabric::Tcp => {
                let with_address = |i: usize| Some((i, Some(*self.nics[i].addresses.first()?)));
                let up = |i: &usize| self.nics[*i].up;
                (0..self.nics.len())
                    .filter(up)
                    .filter_map(with_address)
                    .collect()
            }
        };
        if chosen.is_empty() {
            return vec![Entry {
                nic: None,
                index: usize::MAX,
                address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            }];
        }
        let entry = |(index, address)| Entry {
            nic: self.nics.get(index),
            index,
            address,
        };
        chosen.into_iter().map(entry).collect()
    }

    fn socket_address(&self, nic: usize) -> Option<IpAddr> {
        let n = &self.nics[nic];
        if n.is_rdma() {
            None
        } else {
            n.addresses.first().copied()
        }
    }

    /// An address for the control plane: that of an
    /// interface that carries no samples if there is one.
    fn control_address(&self, entries: &[Entry<'_>]) -> IpAddr {
        let carries = |i: usize| entries.iter().any(|e| e.index == i && e.address.is_some());
        let of = |spare: bool| {
            let mut nics = self.nics.iter().enumerate();
            nics.find_map(|(i, n)| {
                let fits = n.up && !n.is_rdma() && carries(i) != spare;
                fits.then(|| n.addresses.first().copied()).flatten()
            })
        };
        let any = || {
            self.nics
                .iter()
                .filter(|n| n.up)
                .find_map(|n| n.addresses.first().copied())
        };
        of(true)
            .or_else(|| of(false))
            .or_else(any)
            .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }
}

/// `text` as a name that a configuration takes, `fallback` if it is empty.
pub fn allowed_name(text: &str, fallback: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name = text.chars().take(64);
    let name: String = name.map(|c| if is_allowed(c) { c } else { '-' }).collect();
    if name.is_empty() {
        fallback.to_owned()
    } else {
        name
    }
}
