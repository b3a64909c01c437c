//! Pages for `documentation/`: what lies between LoadGen and SUT, and the minimum bandwidths.

use std::fmt::Write;

use super::{
    Nic, Node,
    form::Form,
    system::{System, network_type, protocol, speed, used},
};
use crate::{layout::Place, round::Model};

/// The network in words: each NIC, OSI layers one to four, what lies between, and the data's way.
pub fn network(form: &Form, system: &System<'_>) -> String {
    let mut out = format!(
        "# The network of {}\n\n![the network](network.svg)\n\n",
        form.system
    );
    out += "LoadGen's node and the SUT's are separate machines. A sample leaves LoadGen's node from the memory that the \
            QSL loaded it into, as one message at its true length, through one of the NICs below; the SUT's node gets \
            it through one of its own, computes, and sends the answer back the same way, from which LoadGen reads it.\n\n";
    out += "## OSI layers\n\n| layer | what |\n| --- | --- |\n";
    let media = match form.field("network_media") {
        "" => distinct(system, |n| n.media.clone().unwrap_or_default()),
        said => said.to_owned(),
    };
    let protocol = protocol(system);
    let (transport, network) = match system.fabric.as_str() {
        "ib" => (
            "reliable connections (RC)",
            "InfiniBand, or UDP and IP for RoCE v2",
        ),
        _ => ("TCP", "IP"),
    };
    let rates = distinct(system, speed);
    let _ = writeln!(out, "| 1, physical | {media}, {rates} |");
    let _ = writeln!(out, "| 2, data link | {} |", network_type(system));
    let _ = writeln!(out, "| 3, network | {network} |");
    let _ = writeln!(out, "| 4, transport | {transport} |");
    let _ = writeln!(
        out,
        "\nIn one: {protocol}, {} connections.\n",
        system.connections
    );
    out += "## NICs\n\n| node | side | NIC | card | driver, firmware | link | MTU | addresses | PCIe |\n\
            | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    rows(&mut out, "LoadGen", system.frontend, &system.loadgen_nics());
    for (node, names) in &system.accelerators {
        rows(&mut out, "SUT", node, &used(node, names));
    }
    out += "\n## Between them\n\n";
    if form.switches.is_empty() {
        out += "Nothing: the NICs are wired to each other.\n";
    }
    for switch in &form.switches {
        let cables = match &switch.connects[..] {
            [] => "every NIC above".to_owned(),
            cables => cables.join(", "),
        };
        let _ = writeln!(
            out,
            "* {}: {}, {}; {cables}",
            switch.name, switch.model, switch.software
        );
    }
    out += "\n## Settings\n\n";
    let nodes = system.accelerators.iter().map(|(n, _)| *n);
    for node in std::iter::once(system.frontend).chain(nodes) {
        let _ = writeln!(
            out,
            "* {}: {}, Linux {}; {}",
            node.node,
            node.operating_system,
            node.kernel,
            node.tcp.join("; ")
        );
    }
    out
}

fn rows(out: &mut String, side: &str, node: &Node, nics: &[&Nic]) {
    for nic in nics {
        let mtu = nic.mtu.map(|m| m.to_string()).unwrap_or_default();
        let _ = writeln!(
            out,
            "| {} | {side} | {} | {} | {} | {} {} | {mtu} | {} | {} |",
            node.node,
            nic.name,
            nic.model,
            format!("{} {}", nic.driver, nic.firmware).trim(),
            nic.link_layer,
            speed(nic),
            nic.addresses.join(" "),
            nic.pcie.as_deref().unwrap_or_default()
        );
    }
}

fn distinct(system: &System<'_>, of: impl Fn(&Nic) -> String) -> String {
    let mut all: Vec<_> = system
        .loadgen_nics()
        .into_iter()
        .chain(system.sut_nics())
        .map(of)
        .collect();
    all.retain(|text| !text.is_empty());
    all.sort();
    all.dedup();
    all.join(", ")
}

/// One result, as the statement of bandwidths needs it.
pub struct Rate<'a> {
    /// Which.
    pub place: &'a Place,
    /// Its model.
    pub model: &'a Model,
    /// Samples per second.
    pub per_second: f64,
    /// Bytes of an input's element, and of an output's.
    pub element_bytes: u64,
}

/// The minimum bandwidths of the rules' appendix beside what the NICs can do.
pub fn bandwidth(system: &System<'_>, rates: &[Rate<'_>]) -> String {
    let mut out = "# Minimum bandwidths\n\n\
        The rules' appendix asks for throughput times the size of a sample into the SUT, and times the size of an \
        answer out of it. Sizes are elements times the bytes of each. Where the rules call one negligible, any \
        bandwidth will do. \"NICs\" is the smaller of what LoadGen's NICs and the SUT's can carry together.\n\n\
        | system | model | scenario | samples/s | in: elements x bytes | needed, MB/s | out: elements x bytes | \
        needed, MB/s | NICs, MB/s | enough |\n\
        | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    let sum = |nics: &[&Nic]| nics.iter().filter_map(|n| n.speed_mbps).sum::<u64>() as f64 / 8.0;
    let nics = sum(&system.loadgen_nics()).min(sum(&system.sut_nics()));
    for rate in rates {
        let need = |elements: Option<u64>| {
            elements.map(|n| n as f64 * rate.element_bytes as f64 * rate.per_second / 1e6)
        };
        let size = |elements: Option<u64>| {
            elements.map_or("negligible".to_owned(), |n| {
                format!("{n} x {}", rate.element_bytes)
            })
        };
        let (ingress, egress) = (need(rate.model.ingress), need(rate.model.egress));
        let shown = |n: Option<f64>| n.map_or("> 0".to_owned(), |n| format!("{n:.3}"));
        let most = ingress.unwrap_or(0.0).max(egress.unwrap_or(0.0));
        let enough = match nics {
            0.0 => "the NICs do not say their rate",
            nics if nics > most => "yes",
            _ => "NO",
        };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {:.3} | {} | {} | {} | {} | {nics:.0} | {enough} |",
            rate.place.system,
            rate.place.model,
            rate.place.scenario,
            rate.per_second,
            size(rate.model.ingress),
            shown(ingress),
            size(rate.model.egress),
            shown(egress),
        );
    }
    out
}
