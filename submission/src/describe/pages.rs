//! Pages of `documentation/`: network, minimum bandwidths, data path and quantization.

use std::fmt::Write;

use fabric::kinds::FabricLayers;
use machine::{Nic, Node};
use record::NodeRole;

use super::{
    escape::markdown,
    form::Form,
    system::{DescribedSystem, distinct, layers, media, network_type, protocol, speed},
    used::UsedNode,
};
use crate::{
    layout::{Name, ResultId},
    round::Model,
};

/// The page on the network: OSI layers 1 to 4, each NIC, the switches, and kernel settings.
pub fn network(form: &Form, system: &DescribedSystem) -> String {
    let mut out = format!(
        "# The network of {}\n\n![the network](network.svg)\n\n",
        form.system
    );
    out += "LoadGen's node and the SUT's are separate machines. A sample leaves LoadGen's node from the memory that the \
            QSL loaded it into, as one message at its true length, through one of the NICs below; the SUT's node gets \
            it through one of its own, computes, and sends the answer back the same way, from which LoadGen reads it.\n\n";
    let [prefill, decode] = [NodeRole::Prefill, NodeRole::Decode].map(|r| system.with_role(r));
    if prefill > 0 {
        let _ = writeln!(
            out,
            "The SUT computes each prompt on a prefill node, of which it has {prefill}, and the answer on a decode \
             node, of which it has {decode}. The connector of the engines moves the prompt's KV cache between them.\n"
        );
    }
    let all = layers(form, system);
    let rates = distinct(system.nics().flat_map(|used| used.nic.ports()).map(speed));
    let layer = |of: fn(&FabricLayers) -> &String| {
        let known = all.iter().map(|layers| match of(layers).as_str() {
            "" => "a layer that only its vendor names".to_owned(),
            layer => layer.to_owned(),
        });
        distinct(known)
    };
    let rows = [
        ("1, physical", format!("{}, {rates}", media(form, system))),
        ("2, data link", network_type(form, system)),
        ("3, network", layer(|l| &l.network)),
        ("4, transport", layer(|l| &l.transport)),
    ];
    out += "## OSI layers\n\n| layer | what |\n| --- | --- |\n";
    for (layer, what) in rows {
        let _ = writeln!(out, "| {layer} | {} |", markdown(&what));
    }
    let (protocol, connections) = (markdown(&protocol(form, system)), system.connections);
    let _ = writeln!(out, "\nIn one: {protocol}, {connections} connections.\n");
    out += "## NICs\n\n| node | side | NIC | card | driver, firmware | link | MTU | addresses | PCIe |\n\
            | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    rows_of(&mut out, "LoadGen", system, &system.frontend);
    for machine in &system.accelerators {
        rows_of(&mut out, "SUT", system, machine);
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
        let parts = [&switch.name, &switch.model, &switch.software, &cables].map(|s| markdown(s));
        let [name, model, software, cables] = parts;
        let _ = writeln!(out, "* {name}: {model}, {software}; {cables}");
    }
    out += "\n## Settings\n\n";
    for machine in system.machines() {
        let node = &machine.node;
        let settings = [&node.operating_system, &node.kernel, &node.tcp.join("; ")];
        let [os, kernel, tcp] = settings.map(|s| markdown(s));
        let name = system.titles(machine);
        let _ = writeln!(out, "* {name}: {os}, Linux {kernel}; {tcp}");
    }
    out
}

fn rows_of(out: &mut String, side: &str, system: &DescribedSystem, machine: &UsedNode) {
    for nic in machine.nics.iter().map(|used| &used.nic) {
        for port in nic.ports() {
            let mtu = nic.mtu.map(|m| m.to_string()).unwrap_or_default();
            let cells = [
                system.titles(machine),
                side.to_owned(),
                nic.titled(port),
                port.model.clone(),
                format!("{} {}", port.driver, port.firmware)
                    .trim()
                    .to_owned(),
                format!("{} {}", port.link_layer, speed(port)),
                mtu,
                nic.addresses.join(" "),
                port.pcie.clone().unwrap_or_default(),
            ];
            let _ = writeln!(out, "| {} |", cells.map(|cell| markdown(&cell)).join(" | "));
        }
    }
}

/// A result's rate and element sizes, for the page on bandwidths.
pub struct Rate<'a> {
    pub id: ResultId,
    pub model: &'a Model,
    /// Samples per second; `None` if the log does not say it.
    pub per_second: Option<f64>,
    pub input_bytes: u64,
    /// Bytes of an element of an answer.
    pub output_bytes: u64,
}

impl Rate<'_> {
    /// Required MB/s into the SUT and out of it; `None` where the rules call it negligible.
    fn needed(&self) -> [Option<f64>; 2] {
        let of = |elements: Option<u64>, bytes: u64| {
            elements.map(|n| n as f64 * bytes as f64 * self.per_second.unwrap_or(0.0) / 1e6)
        };
        [
            of(self.model.ingress, self.input_bytes),
            of(self.model.egress, self.output_bytes),
        ]
    }

    /// The larger of the bandwidths required into and out of the SUT, in MB/s.
    fn most(&self) -> f64 {
        self.needed().into_iter().flatten().fold(0.0, f64::max)
    }
}

/// The page on minimum bandwidths by the rules' appendix, beside the NICs' bandwidth.
pub fn bandwidth(system: &DescribedSystem, rates: &[Rate<'_>]) -> String {
    let rows = rates.iter().map(|rate| bandwidth_row(system, rate) + "\n");
    "# Minimum bandwidths\n\n\
        The rules' appendix asks for throughput times the size of a sample into the SUT, and times the size of an \
        answer out of it. Sizes are elements times the bytes of each. Where the rules call one negligible, any \
        bandwidth will do. \"NICs\" is the smaller of what LoadGen's NICs and the SUT's can carry together.\n\n\
        | system | model | scenario | samples/s | in: elements x bytes | needed, MB/s | out: elements x bytes | \
        needed, MB/s | NICs, MB/s | enough |\n\
        | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        .to_owned()
        + &rows.collect::<String>()
}

/// A result's row of the page on bandwidths.
pub fn bandwidth_row(system: &DescribedSystem, rate: &Rate<'_>) -> String {
    // A bond's own rate counts: some bonds carry what one member carries.
    let speed = |nic: &Nic| {
        let members = nic.members.iter().filter_map(|port| port.speed_mbps);
        nic.speed_mbps.unwrap_or_else(|| members.sum())
    };
    let sum = |all: &[UsedNode]| -> f64 {
        let nics = all.iter().flat_map(|machine| &machine.nics);
        nics.map(|used| speed(&used.nic)).sum::<u64>() as f64 / 8.0
    };
    let nics = sum(std::slice::from_ref(&system.frontend)).min(sum(system.sut()));
    let size = |elements: Option<u64>, bytes: u64| {
        elements.map_or("negligible".to_owned(), |n| format!("{n} x {bytes}"))
    };
    let shown = |n: Option<f64>| n.map_or("> 0".to_owned(), |n| format!("{n:.3}"));
    let [ingress, egress] = rate.needed();
    let enough = match nics {
        0.0 => "the NICs do not say their rate",
        nics if nics > rate.most() => "yes",
        _ => "NO",
    };
    format!(
        "| {} | {} | {} | {:.3} | {} | {} | {} | {} | {nics:.0} | {enough} |",
        rate.id.system,
        rate.id.model,
        rate.id.scenario,
        rate.per_second.unwrap_or(0.0),
        size(rate.model.ingress, rate.input_bytes),
        shown(ingress),
        size(rate.model.egress, rate.output_bytes),
        shown(egress),
    )
}

/// The page on how the accelerators batch queries, from their configurations.
pub fn batching(name: &Name, system: &DescribedSystem) -> String {
    let mut out = format!(
        "# How {name} batches queries\n\nThe frontend batches nothing: each sample is a message of \
         its own, as LoadGen issues it. Batching is the accelerators'.\n\n"
    );
    for (node, engine) in &system.engines {
        let kind = engine.kind.as_str();
        let (most, wait, workers) = (engine.max_batch, engine.max_delay_us, engine.workers());
        let _ = match engine.kind.streams() {
            true => writeln!(
                out,
                "* {node}: engine `{kind}` batches continuously: a query joins the running batch at \
                 the next step, and leaves it with its last token"
            ),
            false => writeln!(
                out,
                "* {node}: engine `{kind}` runs batches of at most {most} samples on {workers} \
                 threads. An idle engine takes the samples that are there; while it is busy, a \
                 sample waits at most {wait} us"
            ),
        };
    }
    out
}

/// The page on a sample's path from the NICs to the accelerators, beside the required bandwidth.
pub fn data_path(form: &Form, system: &DescribedSystem, rates: &[Rate<'_>]) -> String {
    let most = rates.iter().map(Rate::most).fold(0.0, f64::max);
    let mut out = format!(
        "# From the NICs to the accelerators of {}\n\nA sample comes through a NIC into the memory of its node, \
         where the engine reads it, and from there over PCIe into an accelerator; an answer goes the same way back. \
         The results need {most:.3} MB/s each way at most (`bandwidth.md`). A PCIe link carries what its \
         specification says: transfers/s x lanes x encoding / 8.\n\n\
         | node | device | link | MB/s |\n| --- | --- | --- | --- |\n",
        form.system
    );
    let mut row = |node: &Node, what: &str, link: &str, rate: Option<f64>| {
        let rate = rate.map_or("not known".to_owned(), |r| format!("{r:.0}"));
        let cells = [&node.node, what, link].map(markdown).join(" | ");
        let _ = writeln!(out, "| {cells} | {rate} |");
    };
    for machine in system.sut() {
        let node = &machine.node;
        for nic in machine.ports() {
            let name = format!("{} {}", nic.name, nic.model);
            let port = nic.speed_mbps.map(|mbps| mbps as f64 / 8.0);
            let link = format!("{} {}", nic.link_layer, speed(nic));
            row(node, &name, &link, port);
            let pcie = nic.pcie.as_deref().unwrap_or("PCIe not known");
            row(node, &name, pcie, pcie_rate(pcie));
        }
        for gpu in &node.gpus {
            let pcie = gpu.pcie.as_deref().unwrap_or("PCIe not known");
            let name = format!("{} {}", gpu.name, gpu.pci);
            row(node, &name, pcie, pcie_rate(pcie));
        }
        if node.gpus.is_empty() {
            row(node, "host memory, which the engine computes in", "", None);
        }
    }
    if !form.data_path.trim().is_empty() {
        let _ = writeln!(out, "\n{}", form.data_path.trim());
    }
    out
}

/// MB/s of a PCIe link, from sysfs (`16.0 GT/s PCIe x16`) or nvidia-smi (`PCIe Gen5 x16`).
fn pcie_rate(link: &str) -> Option<f64> {
    let mut words = link.split_whitespace();
    let mut lanes = words.clone().rev();
    let lanes: f64 = lanes.find_map(|w| w.strip_prefix('x')?.parse().ok())?;
    let of_generation = words.clone().find_map(|w| match w.strip_prefix("Gen")? {
        "1" => Some(2.5),
        "2" => Some(5.0),
        "3" => Some(8.0),
        "4" => Some(16.0),
        "5" => Some(32.0),
        "6" => Some(64.0),
        _ => None,
    });
    let transfers: f64 = of_generation.or_else(|| words.next()?.parse().ok())?;
    let encoding = if transfers < 8.0 { 0.8 } else { 128.0 / 130.0 };
    Some(transfers * 1000.0 * lanes * encoding / 8.0)
}

/// The page on how each model's weights and activations were quantized.
pub fn quantization<'a>(form: &Form, models: impl Iterator<Item = &'a Name>) -> String {
    let mut out = format!(
        "# Quantization\n\n{}\n\n| model | weights | transformations | starting from |\n\
         | --- | --- | --- | --- |\n",
        form.quantization.trim()
    );
    for model in models {
        let fields = form.models.get(&**model);
        let said = |field: &str| {
            let text = fields.and_then(|f| f.get(field));
            markdown(text.map_or("", String::as_str))
        };
        let (types, changes) = (said("weight_data_types"), said("weight_transformations"));
        let file = said("starting_weights_filename");
        let _ = writeln!(out, "| {model} | {types} | {changes} | {file} |");
    }
    out
}
