//! A configuration to begin with: every NIC of this
//! machine, each with its GPU, its node and a core of it.
//!
//! The files start both programs as they are, with the `digest` engine, which takes any bytes: the
//! first thing to find out is whether bytes get across. Such a run is VALID as it is
//! ([`FIRST_RUN`]). Model, data set and the other node's address are what is left to fill in.

use std::{
    fmt::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use super::{FIRST_RUN, Nic, NicKind, Topology};

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
    cpu: Option<usize>,
}

impl Topology {
    /// Configuration of a frontend on this machine.
    pub fn frontend_yaml(&self, node: &str, fabric: Fabric) -> String {
        let entries = self.entries(fabric);
        let control = self.control_address(&entries);
        let mut y = head("frontend", node, self);
        let _ = writeln!(y, "node: {}", name(node));
        auth(&mut y, control);
        let _ = write!(
            y,
            "\nmodel:\n  name: digest\n  inputs:\n    - {{name: input, dtype: u8, shape: [{SAMPLE_BYTES}], ragged: true}}\n  \
             output: {{name: output, dtype: u8, shape: [8]}}\n\n\
             dataset: {{kind: random, count: 1024, min_bytes: {SAMPLE_BYTES}, max_bytes: {SAMPLE_BYTES}, distribution: fixed}}\n\
             verify: digest\n\n\
             accelerators:\n  - control: {}    # where the accelerator listens\n\n",
            SocketAddr::new(control, CONTROL_PORT)
        );
        self.nics_yaml(&mut y, &entries, |y, e| {
            if let Some(a) = e.address {
                let _ = writeln!(y, "  - address: {a}");
            }
        });
        y.push('\n');
        y.push_str(FIRST_RUN);
        y
    }

    /// Configuration of an accelerator on this machine.
    pub fn accelerator_yaml(&self, node: &str, fabric: Fabric) -> String {
        let entries = self.entries(fabric);
        let control = self.control_address(&entries);
        let mut y = head("accelerator", node, self);
        let _ = writeln!(y, "node: {}", name(node));
        let _ = writeln!(
            y,
            "control: {{listen: \"{}\"}}",
            SocketAddr::new(control, CONTROL_PORT)
        );
        auth(&mut y, control);
        let _ = write!(
            y,
            "\nmodel: {{name: digest, max_input_bytes: {SAMPLE_BYTES}}}\nengine: {{kind: digest, max_batch: 64, max_delay_us: 200}}\n"
        );
        let budget = entries.len() * QUEUE_PAIRS * 2 * MIB_PER_CONNECTION;
        if budget > DEFAULT_BUDGET_MIB {
            let _ = writeln!(y, "memory_mib: {budget}    # slots of every queue pair");
        }
        y.push('\n');
        let mut port = DATA_PORT;
        self.nics_yaml(&mut y, &entries, |y, e| {
            if let Some(a) = e.address {
                let _ = writeln!(y, "  - listen: \"{}\"", SocketAddr::new(a, port));
                port += 1;
            }
        });
        y
    }

    fn nics_yaml(
        &self,
        y: &mut String,
        entries: &[Entry<'_>],
        mut socket: impl FnMut(&mut String, &Entry<'_>),
    ) {
        y.push_str("nics:\n");
        for e in entries {
            match e.nic.map(|n| (&n.kind, n)) {
                Some((NicKind::Rdma { port, .. }, n)) if e.address.is_none() => {
                    let _ = write!(
                        y,
                        "  - device: {}\n    port: {port}\n    queue_pairs: {QUEUE_PAIRS}\n",
                        n.name
                    );
                    if let Some(g) = self.gpu_of(e.index) {
                        let _ = writeln!(y, "    gpu: {g}");
                    }
                }
                _ => socket(y, e),
            }
            if let Some(numa) = e.nic.and_then(|n| n.place.numa) {
                let _ = writeln!(y, "    numa: {numa}");
            }
            if let Some(cpu) = e.cpu {
                let _ = writeln!(y, "    cpus: [{cpu}]");
            }
        }
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
                cpu: None,
            }];
        }
        let mut taken = Vec::new();
        chosen
            .iter()
            .map(|(index, address)| Entry {
                nic: self.nics.get(*index),
                index: *index,
                address: *address,
                cpu: self.core_for(*index, chosen.len(), &mut taken),
            })
            .collect()
    }

    fn socket_address(&self, nic: usize) -> Option<IpAddr> {
        let n = &self.nics[nic];
        if n.is_rdma() {
            None
        } else {
            n.addresses.first().copied()
        }
    }

    /// A core of the NIC's node for its NIC thread: another for each
    /// NIC, and never the node's first, where the system's own work is
    /// done. None on a machine that has not two cores for each NIC.
    fn core_for(&self, nic: usize, nics: usize, taken: &mut Vec<usize>) -> Option<usize> {
        let cores: usize = self.nodes.iter().map(|n| n.cpus.as_slice().len()).sum();
        if cores < 2 * nics + 2 {
            return None;
        }
        let node = self.nics[nic].place.numa?;
        let own = &self.nodes.iter().find(|n| n.id == node)?.cpus;
        let core = own.as_slice().iter().skip(1).find(|c| !taken.contains(c))?;
        taken.push(*core);
        Some(*core)
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

fn head(what: &str, node: &str, t: &Topology) -> String {
    format!(
        "# {what} {}: {} NIC(s) up, {} GPU(s), {} NUMA node(s), as found on this machine.\n\n",
        name(node),
        t.nics.iter().filter(|n| n.up).count(),
        t.gpus.len(),
        t.nodes.len()
    )
}

fn auth(y: &mut String, control: IpAddr) {
    if !control.is_loopback() {
        y.push_str(
            "auth: none    # anybody who reaches the address may connect; better: `token_file: FILE`, the same on \
             both nodes\n",
        );
    }
}

/// A node's name with nothing in it that a configuration does not allow.
fn name(text: &str) -> String {
    let ok = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '-'
        }
    };
    let name: String = text.chars().take(64).map(ok).collect();
    if name.is_empty() {
        "node".to_owned()
    } else {
        name
    }
}
