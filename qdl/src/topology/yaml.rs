//! A configuration to begin with: every NIC of this machine, each with its GPU. Threads and memory
//! lie on the NIC's own NUMA node by default, so the files name none.
//!
//! The files start both programs as they are, with the `digest` engine, which takes any bytes: the
//! first thing to find out is whether bytes get across. Such a run is VALID as it is
//! ([`FIRST_RUN`]). Model, data set and the other node's address are what is left to fill in.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{FIRST_RUN, NicKind, Topology, fill_template};

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

/// A NIC as it goes into a file: its index in the topology, and its address where samples go over
/// sockets.
type Entry = (Option<usize>, Option<IpAddr>);

impl Topology {
    /// Configuration of a frontend on this machine.
    pub fn frontend_yaml(&self, node: &str, fabric: Fabric) -> String {
        let template = include_str!("templates/frontend.yaml");
        let text = self.yaml(template, node, fabric, |_, at| format!("address: {at}"));
        format!("{text}\n{FIRST_RUN}")
    }

    /// Configuration of an accelerator on this machine.
    pub fn accelerator_yaml(&self, node: &str, fabric: Fabric) -> String {
        let template = include_str!("templates/accelerator.yaml");
        self.yaml(template, node, fabric, |i, at| {
            let port = DATA_PORT.saturating_add(i as u16);
            format!("listen: \"{}\"", SocketAddr::new(at, port))
        })
    }

    fn yaml(
        &self,
        template: &str,
        node: &str,
        fabric: Fabric,
        socket: impl Fn(usize, IpAddr) -> String,
    ) -> String {
        let entries = self.entries(fabric);
        let control = self.control_address(&entries);
        let budget = entries.len() * QUEUE_PAIRS * 2 * MIB_PER_CONNECTION;
        let up = self.nics.iter().filter(|n| n.up).count();
        let (gpus, nodes) = (self.gpus.len(), self.nodes.len());
        let nic = |(i, entry): (usize, &Entry)| {
            let keys = match *entry {
                (_, Some(at)) => socket(i, at),
                (nic, None) => self.device_keys(nic.unwrap_or_default()),
            };
            format!("  - {keys}\n")
        };
        let if_true = |is: bool, text: String| if is { text } else { String::new() };
        let large = budget > DEFAULT_BUDGET_MIB;
        let found = format!("{up} NIC(s) up, {gpus} GPU(s), {nodes} NUMA node(s)");
        let address = SocketAddr::new(control, CONTROL_PORT);
        let values = [
            ("node", allowed_name(node, "node")),
            ("found", found),
            ("auth", if_true(!control.is_loopback(), "none".to_owned())),
            ("bytes", SAMPLE_BYTES.to_string()),
            ("control", address.to_string()),
            ("budget", if_true(large, budget.to_string())),
            ("nics", entries.iter().enumerate().map(nic).collect()),
        ];
        fill_template(template, 0, &values)
    }

    /// An RDMA device's.
    fn device_keys(&self, nic: usize) -> String {
        let n = &self.nics[nic];
        let port = match n.kind {
            NicKind::Rdma { port, .. } => port,
            NicKind::Tcp => 1,
        };
        let device = &n.name;
        let gpu = self.gpu_of(nic).map(|g| format!("\n    gpu: {g}"));
        let gpu = gpu.unwrap_or_default();
        format!("device: {device}\n    port: {port}\n    queue_pairs: {QUEUE_PAIRS}{gpu}")
    }

    /// NICs that go into a file. Without any, this machine can talk to itself.
    fn entries(&self, fabric: Fabric) -> Vec<Entry> {
        let address = |i: usize| self.nics[i].addresses.first().copied();
        let all = 0..self.nics.len();
        let chosen: Vec<Entry> = match fabric {
            Fabric::Auto => {
                let socket = |i| address(i).filter(|_| !self.nics[i].is_rdma());
                let nics = self.usable_nics().into_iter();
                nics.map(|i| (Some(i), socket(i))).collect()
            }
            Fabric::Tcp => {
                let nics = all.filter(|i| self.nics[*i].up && address(*i).is_some());
                nics.map(|i| (Some(i), address(i))).collect()
            }
        };
        match chosen.is_empty() {
            true => vec![(None, Some(IpAddr::V4(Ipv4Addr::LOCALHOST)))],
            false => chosen,
        }
    }

    /// An address for the control plane: that of an interface that carries no samples if there is
    /// one.
    fn control_address(&self, entries: &[Entry]) -> IpAddr {
        let up = || self.nics.iter().enumerate().filter(|(_, n)| n.up);
        let carries = |i| entries.iter().any(|e| e.0 == Some(i) && e.1.is_some());
        let sockets = || up().filter(|(_, n)| !n.is_rdma());
        let spare = sockets().filter(|(i, _)| !carries(*i));
        let all = spare.chain(sockets()).chain(up());
        let found = all.filter_map(|(_, n)| n.addresses.first().copied()).next();
        found.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
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
