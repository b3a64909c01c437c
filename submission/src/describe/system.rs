//! Fills in the system's JSON from the form, then from the nodes' descriptions.

use engines::EngineConfig;
use fabric::kinds::FabricLayers;
use machine::{Disk, Gpu, Nic, Node};
use record::NodeRole;
use serde_json::{Map, Value};

use super::{
    form::Form,
    used::{UsedNic, UsedNode},
};
use crate::{
    layout::{Division, Name},
    round::Round,
};

/// The machines of a system, with the NICs that its run used.
pub struct DescribedSystem {
    pub frontend: UsedNode,
    /// The SUT's machines.
    pub accelerators: Vec<UsedNode>,
    pub connections: u64,
    /// The accelerators' engines, by node, as far as their configurations can be read.
    pub engines: Vec<(Name, EngineConfig)>,
}

impl DescribedSystem {
    /// The SUT's machines; if the run was one process, LoadGen's.
    pub fn sut(&self) -> &[UsedNode] {
        match &self.accelerators[..] {
            [] => std::slice::from_ref(&self.frontend),
            all => all,
        }
    }

    /// Ports of all SUT machines that carried samples.
    pub fn sut_ports(&self) -> impl Iterator<Item = &Nic> {
        self.sut().iter().flat_map(UsedNode::ports)
    }

    /// LoadGen's machine, then the SUT's.
    pub fn machines(&self) -> impl Iterator<Item = &UsedNode> {
        std::iter::once(&self.frontend).chain(&self.accelerators)
    }

    pub fn nics(&self) -> impl Iterator<Item = &UsedNic> {
        self.machines().flat_map(|machine| &machine.nics)
    }

    /// The names of a machine's nodes, each with its role if it computes one phase of an answer.
    pub fn titles(&self, machine: &UsedNode) -> String {
        let title = |name: &String| {
            let engine = self.engines.iter().find(|(node, _)| **node == **name);
            match engine.map_or(NodeRole::Both, |(_, engine)| engine.role) {
                NodeRole::Both => name.clone(),
                role => format!("{name} ({role})"),
            }
        };
        let titles: Vec<_> = machine.names.iter().map(title).collect();
        titles.join(", ")
    }

    /// Number of nodes with this role.
    pub fn with_role(&self, role: NodeRole) -> usize {
        let engines = self.engines.iter();
        engines.filter(|(_, engine)| engine.role == role).count()
    }
}

/// The system's JSON. A field without a source is an empty string, which the checks report. Only
/// the Network division has fields of the network.
pub fn json(
    round: &Round,
    division: Division,
    form: &Form,
    system: &DescribedSystem,
) -> Map<String, Value> {
    // A system of the Open division may be one over a network, if the form says so.
    let is_open_network = division == Division::Open && !form.field("is_network").is_empty();
    let network = match is_open_network {
        true => &round.system.network,
        false => round.system.network_of(division),
    };
    let fields = round.system.fields.iter().chain(network);
    let fields = fields.map(|name| {
        let text = form.field(name);
        let value = match text.parse::<u64>() {
            _ if text.is_empty() => known(round, division, form, system, name),
            Ok(n) if n > 0 && round.system.numbers.contains(name) => Value::from(n),
            _ => Value::String(text.to_owned()),
        };
        (name.clone(), value)
    });
    fields.collect()
}

fn known(
    round: &Round,
    division: Division,
    form: &Form,
    system: &DescribedSystem,
    field: &str,
) -> Value {
    let text = |text: String| Value::String(text);
    if let Some(value) = of_nodes(system.sut(), field) {
        return value;
    }
    match field {
        "division" => text(division.name().to_owned()),
        "submitter" => text(form.submitter.to_string()),
        "system_type" => text(round.system_type.clone()),
        "status" => text(form.status.clone()),
        "number_of_nodes" => Value::from(system.sut().len()),
        "is_network" => text("True".to_owned()),
        "network_type" => text(network_type(form, system)),
        "network_media" => text(media(form, system)),
        "network_rate" => text(distinct(ports(system).map(speed))),
        "nic_loadgen" => text(distinct(system.frontend.ports().map(what))),
        "number_nic_loadgen" => Value::from(system.frontend.ports().count()),
        "net_software_stack_loadgen" => text(stack(&system.frontend)),
        "network_protocol" => text(protocol(form, system)),
        "number_connections" => Value::from(system.connections),
        "nic_sut" => text(distinct(system.sut_ports().map(what))),
        "number_nic_sut" => Value::from(system.sut_ports().count()),
        "net_software_stack_sut" => text(distinct(system.sut().iter().map(stack))),
        "network_topology" => text(topology(form, system)),
        _ => text(String::new()),
    }
}

/// A field that the machines of an SUT report by themselves; `None` for any other field.
pub(crate) fn of_nodes(sut: &[UsedNode], field: &str) -> Option<Value> {
    let text = |text: String| Value::String(text);
    let nodes = || sut.iter().map(|machine| &machine.node);
    let each = |of: &dyn Fn(&Node) -> String| text(distinct(nodes().map(of)));
    Some(match field {
        "host_processor_model_name" => each(&|n| n.processors.model.clone()),
        "host_processors_per_node" => most(nodes().map(|n| u64::from(n.processors.sockets))),
        "host_processor_core_count" => each(&|n| n.processors.cores_per_socket.to_string()),
        "host_processor_frequency" => each(&|n| with_unit(n.processors.max_mhz, "MHz")),
        "host_processor_caches" => each(&|n| n.processors.caches.join(", ")),
        "host_memory_capacity" => each(&|n| gib(n.memory.bytes)),
        "host_memory_configuration" => each(&|n| n.memory.modules.join(" + ")),
        "host_storage_capacity" => each(&|n| {
            joined(
                n.disks
                    .iter()
                    .map(|d| format!("{:.0} GB", d.bytes as f64 / 1e9)),
            )
        }),
        "host_storage_type" => each(&|n| joined(n.disks.iter().map(kind))),
        "host_networking" => each(&|n| joined(n.nics.iter().filter(|n| n.up).map(rate))),
        "host_network_card_count" => each(&|n| joined(n.nics.iter().map(card))),
        "accelerators_per_node" => most(nodes().map(|n| n.gpus.len() as u64)),
        "accelerator_model_name" => {
            each(&|n| none_or(n, joined(n.gpus.iter().map(|g| g.reported().to_owned()))))
        }
        "accelerator_memory_capacity" => each(&|n| none_or(n, gpus(n, &|g| gib(g.bytes)))),
        "accelerator_frequency" => each(&|n| gpus(n, &|g| with_unit(g.max_mhz, "MHz"))),
        "accelerator_host_interconnect" => {
            each(&|n| none_or(n, gpus(n, &|g| g.pcie.clone().unwrap_or_default())))
        }
        "operating_system" => each(&|n| format!("{}, Linux {}", n.operating_system, n.kernel)),
        "other_software_stack" => each(&|n| n.gpu_driver.clone()),
        _ => return None,
    })
}

fn ports(system: &DescribedSystem) -> impl Iterator<Item = &Nic> {
    system.machines().flat_map(UsedNode::ports)
}

/// The form's media, else the media that the ports report.
pub(super) fn media(form: &Form, system: &DescribedSystem) -> String {
    match form.field("network_media") {
        "" => distinct(ports(system).filter_map(|n| n.media.clone())),
        said => said.to_owned(),
    }
}

/// Joins distinct texts in their order; skips empty ones.
pub(crate) fn distinct(all: impl Iterator<Item = String>) -> String {
    let mut seen: Vec<String> = Vec::new();
    for one in all.filter(|one| !one.is_empty()) {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen.join("; ")
}

/// Joins texts with counts, as `8 x A + 1 x B`; a single text stays `A`.
fn joined(all: impl Iterator<Item = String>) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for one in all.filter(|one| !one.is_empty()) {
        match counts.iter_mut().find(|(name, _)| *name == one) {
            Some((_, n)) => *n += 1,
            None => counts.push((one, 1)),
        }
    }
    match &counts[..] {
        [(one, 1)] => one.clone(),
        all => {
            let all: Vec<_> = all.iter().map(|(one, n)| format!("{n} x {one}")).collect();
            all.join(" + ")
        }
    }
}

/// `N/A` for a node without accelerators, which may not leave these fields empty.
fn none_or(node: &Node, text: String) -> String {
    match node.gpus.is_empty() {
        true => "N/A".to_owned(),
        false => text,
    }
}

fn gpus(node: &Node, of: &dyn Fn(&Gpu) -> String) -> String {
    distinct(node.gpus.iter().map(of))
}

/// The maximum. Zero becomes text: the checker calls the number 0 empty but accepts "0".
fn most(all: impl Iterator<Item = u64>) -> Value {
    match all.max().unwrap_or(0) {
        0 => Value::from("0"),
        n => Value::from(n),
    }
}

fn with_unit(n: Option<u64>, unit: &str) -> String {
    n.map(|n| format!("{n} {unit}")).unwrap_or_default()
}

fn gib(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        n => format!("{:.0} GiB", n as f64 / f64::from(1 << 30)),
    }
}

fn kind(disk: &Disk) -> String {
    let kind = match (disk.rotational, disk.name.starts_with("nvme")) {
        (true, _) => "HDD",
        (false, true) => "NVMe SSD",
        (false, false) => "SSD",
    };
    kind.to_owned()
}

fn rate(nic: &Nic) -> String {
    let text = format!("{} {}", nic.link_layer, speed(nic));
    text.trim().to_owned()
}

fn card(nic: &Nic) -> String {
    format!("{} {}", what(nic), speed(nic)).trim().to_owned()
}

fn what(nic: &Nic) -> String {
    let name = if nic.model.is_empty() {
        &nic.driver
    } else {
        &nic.model
    };
    name.clone()
}

/// Link speed as `200G` or `10M`.
pub(crate) fn speed(nic: &Nic) -> String {
    match nic.speed_mbps {
        Some(mbps) if mbps >= 1000 => format!("{}G", mbps as f64 / 1000.0),
        Some(mbps) => format!("{mbps}M"),
        None => String::new(),
    }
}

/// The form's link layer, else the link layers of all NICs that carried samples.
pub(super) fn network_type(form: &Form, system: &DescribedSystem) -> String {
    match form.field("network_type") {
        "" => distinct(system.nics().map(|used| used.nic.link_layer.clone())),
        said => said.to_owned(),
    }
}

/// The layers of each fabric. The form's link layer goes before what the NICs report.
pub(super) fn layers(form: &Form, system: &DescribedSystem) -> Vec<FabricLayers> {
    let link = form.field("network_type");
    let of = |used: &UsedNic| match link {
        "" => used.layers(&used.nic.link_layer),
        said => used.layers(said),
    };
    system.nics().map(of).collect()
}

/// The form's protocol stack, else each fabric's, as `TCP/IPv4 over Ethernet`.
pub(super) fn protocol(form: &Form, system: &DescribedSystem) -> String {
    match form.field("network_protocol") {
        "" => distinct(layers(form, system).into_iter().map(|l| l.protocol)),
        said => said.to_owned(),
    }
}

fn stack(machine: &UsedNode) -> String {
    let driver = |n: &Nic| format!("{} {}", n.driver, n.firmware).trim().to_owned();
    let libraries = machine.nics.iter().map(|used| used.library(&machine.node));
    let drivers = distinct(machine.ports().map(driver));
    let (kernel, libraries) = (&machine.node.kernel, distinct(libraries));
    let text = format!("Linux {kernel} {libraries}, {drivers}");
    text.trim_end_matches(", ").to_owned()
}

fn topology(form: &Form, system: &DescribedSystem) -> String {
    let nodes = system.sut().len();
    let nodes = format!("{nodes} SUT node{}", if nodes == 1 { "" } else { "s" });
    if form.switches.is_empty() {
        return format!("LoadGen system connected point to point to {nodes}");
    }
    let switches = form.switches.iter();
    let switches = switches.map(|s| format!("{} ({})", s.name, s.model));
    let switches = switches.collect::<Vec<_>>().join(", ");
    format!("LoadGen system connected to {nodes} through {switches}")
}
