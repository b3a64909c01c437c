//! Initial configurations with every NIC of this machine and the NIC's GPU. They set no placement:
//! by default, threads and memory are on the NIC's NUMA node.
//!
//! Both programs start with the unchanged files, so that a first run tests the data path: the
//! engine is `digest`, which accepts any bytes. Such a run is VALID ([`FIRST_RUN`]). The user fills
//! in model, data set and the peer's address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{NicKind, Topology};

/// The mapping `loadgen` of a frontend's file, for an engine of unknown speed: SingleStream.
///
/// LoadGen plans a run in advance, from a rate. In Offline, too low a rate makes the one query too
/// small for the minimum duration, and the run INVALID. In Server, too high a rate breaks the
/// latency bound. SingleStream needs no rate: it runs until duration and count are reached,
/// whatever the latency. It fails only if its prepared queries run out: LoadGen prepares twice as
/// many as fit into the duration at the expected latency. So this file sets an expected latency
/// below any latency over a network.
pub const FIRST_RUN: &str = include_str!("templates/first_run.yaml");

/// Replaces each `<<key>>` of `template` with its value. Leaves out a line with an empty value.
/// Moves a comment after two blanks to column `comments`.
pub fn fill_template(template: &str, comments: usize, values: &[(&str, String)]) -> String {
    let mut text = String::new();
    'lines: for line in template.lines() {
        let (mut rest, comment) = match line.split_once("  # ") {
            Some((yaml, comment)) if !yaml.trim().is_empty() => (yaml, comment),
            _ => (line, ""),
        };
        let mut yaml = String::new();
        while let Some((before, behind)) = rest.split_once("<<") {
            let (key, behind) = behind.split_once(">>").unwrap_or((behind, ""));
            let value = values.iter().find(|(of, _)| *of == key);
            match value.map(|(_, value)| value.as_str()) {
                Some("") => continue 'lines,
                // Keep the key, so that the configuration's check finds it.
                None => yaml.extend([before, "<<", key, ">>"]),
                Some(value) => yaml.extend([before, value]),
            }
            rest = behind;
        }
        yaml += rest;
        if !comment.is_empty() {
            yaml = format!("{:<comments$} # {comment}", yaml.trim_end());
        }
        text += yaml.trim_end();
        text.push('\n');
    }
    text
}

/// Fabric of the generated configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fabric {
    /// RDMA if a device is up, otherwise TCP.
    #[default]
    Auto,
    /// TCP over every interface with an address, including those of RDMA devices.
    Tcp,
}

const CONTROL_PORT: u16 = 7400;
/// Port of the first NIC's connections; the next NICs use the next ports.
const DATA_PORT: u16 = 7410;
const QUEUE_PAIRS: usize = 4;
/// Bytes of the largest sample that the files allow: ResNet-50's.
const SAMPLE_BYTES: usize = 150_528;
/// MiB of slots per connection at one end. Below: default budget of an accelerator.
const MIB_PER_CONNECTION: usize = 64;
const DEFAULT_BUDGET_MIB: usize = 4096;

/// A NIC of the file: the NIC's index in the topology, and its address if samples use sockets.
type YamlNic = (Option<usize>, Option<IpAddr>);

impl Topology {
    pub(crate) fn frontend_yaml(&self, node: &str, fabric: Fabric) -> String {
        let template = include_str!("templates/frontend.yaml");
        let pairs = format!("\n    queue_pairs: {QUEUE_PAIRS}");
        let text = self.yaml(template, node, fabric, &pairs, |_, at| {
            format!("address: {at}")
        });
        format!("{text}\n{FIRST_RUN}")
    }

    pub(crate) fn accelerator_yaml(&self, node: &str, fabric: Fabric) -> String {
        let template = include_str!("templates/accelerator.yaml");
        self.yaml(template, node, fabric, "", |i, at| {
            let port = DATA_PORT.saturating_add(i as u16);
            format!("listen: \"{}\"", SocketAddr::new(at, port))
        })
    }

    fn yaml(
        &self,
        template: &str,
        node: &str,
        fabric: Fabric,
        pairs: &str,
        socket: impl Fn(usize, IpAddr) -> String,
    ) -> String {
        let entries = self.entries(fabric);
        let control = self.control_address(&entries);
        let budget = entries.len() * QUEUE_PAIRS * 2 * MIB_PER_CONNECTION;
        let up = self.nics.iter().filter(|n| n.up).count();
        let (gpus, nodes) = (self.gpus.len(), self.nodes.len());
        let nic = |(i, entry): (usize, &YamlNic)| {
            let keys = match *entry {
                (_, Some(at)) => socket(i, at),
                (nic, None) => self.device_keys(nic.unwrap_or_default(), pairs),
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

    fn device_keys(&self, nic: usize, pairs: &str) -> String {
        let n = &self.nics[nic];
        let port = match n.kind {
            NicKind::Rdma { port, .. } => port,
            NicKind::Tcp => 1,
        };
        let device = &n.name;
        let gpu = self.gpu_of(nic).map(|g| format!("\n    gpu: {g}"));
        let gpu = gpu.unwrap_or_default();
        format!("device: {device}\n    port: {port}{pairs}{gpu}")
    }

    /// NICs of the file; loopback if this machine has no NIC.
    fn entries(&self, fabric: Fabric) -> Vec<YamlNic> {
        let address = |i: usize| self.nics[i].addresses.first().copied();
        let all = 0..self.nics.len();
        let chosen: Vec<YamlNic> = match fabric {
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

    /// Address for the control plane, preferably of an interface that carries no samples.
    fn control_address(&self, entries: &[YamlNic]) -> IpAddr {
        let up = || self.nics.iter().enumerate().filter(|(_, n)| n.up);
        let carries = |i| entries.iter().any(|e| e.0 == Some(i) && e.1.is_some());
        let sockets = || up().filter(|(_, n)| !n.is_rdma());
        let spare = sockets().filter(|(i, _)| !carries(*i));
        let all = spare.chain(sockets()).chain(up());
        let found = all.filter_map(|(_, n)| n.addresses.first().copied()).next();
        found.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }
}

/// Returns `text` with only allowed characters of a name; `fallback` if it is empty.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_its_value_is_left_out_and_comments_are_aligned() {
        let values = [("a", "<<b>>".to_owned()), ("b", String::new())];
        let text = fill_template(
            "# a\n\na: <<a>>, <<a>>  # one\nb: <<b>>  # two\nc: 1\n",
            12,
            &values,
        );
        assert_eq!(text, "# a\n\na: <<b>>, <<b>> # one\nc: 1\n");
        assert_eq!(fill_template("a: 1  # one", 8, &[]), "a: 1     # one\n");
    }
}
