//! Fills in the system's JSON from the form, then from the nodes' descriptions.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Disk, Gpu, Nic, Node, form::Form};
use crate::{layout::Division, round::Round};

/// The nodes of a system, and the NICs, fabric and connections that its run used.
pub struct DescribedSystem<'a> {
    pub frontend: &'a Node,
    /// Names of the frontend's NICs that carried samples; if empty, all NICs whose link is up.
    pub frontend_nics: BTreeSet<String>,
    /// The SUT's nodes, each with the names of its NICs as in `frontend_nics`.
    pub accelerators: Vec<(&'a Node, BTreeSet<String>)>,
    /// The run's fabric: `tcp`, `ib`, `ofi`, or `local`; empty without a run.
    pub fabric: String,
    pub connections: u64,
}

impl<'a> DescribedSystem<'a> {
    /// NICs of LoadGen's node that carried samples.
    pub fn loadgen_nics(&self) -> Vec<&'a Nic> {
        used(self.frontend, &self.frontend_nics)
    }

    /// NICs of all SUT nodes that carried samples.
    pub fn sut_nics(&self) -> Vec<&'a Nic> {
        let all = self.accelerators.iter();
        all.flat_map(|(node, names)| used(node, names)).collect()
    }

    /// The SUT's nodes with their NICs; if the run was one process, LoadGen's node.
    pub fn sut(&self) -> Vec<(&'a Node, &BTreeSet<String>)> {
        match &self.accelerators[..] {
            [] => vec![(self.frontend, &self.frontend_nics)],
            all => all.iter().map(|(node, names)| (*node, names)).collect(),
        }
    }
}

/// NICs of a node by name; without names, all whose link is up, except loopback.
pub fn used<'a>(node: &'a Node, names: &BTreeSet<String>) -> Vec<&'a Nic> {
    let named = |nic: &&Nic| {
        names.contains(&nic.name) || nic.netdev.as_ref().is_some_and(|n| names.contains(n))
    };
    let all = node.nics.iter();
    if names.is_empty() {
        all.filter(|nic| nic.up && nic.link_layer != "loopback")
            .collect()
    } else {
        all.filter(named).collect()
    }
}

/// The system's JSON. A field without a source is an empty string, which the checks report. Only
/// the Network division has fields of the network.
pub fn json(
    round: &Round,
    division: Division,
    form: &Form,
    system: &DescribedSystem<'_>,
) -> Map<String, Value> {
    let network = round.system.network_of(division);
    let fields = round.system.fields.iter().chain(network);
    let fields = fields.map(|name| {
        let value = match form.field(name) {
            "" => known(round, division, form, system, name),
            text => Value::String(text.to_owned()),
        };
        (name.clone(), value)
    });
    fields.collect()
}

fn known(
    round: &Round,
    division: Division,
    form: &Form,
    system: &DescribedSystem<'_>,
    field: &str,
) -> Value {
    let text = |text: String| Value::String(text);
    let nodes = || system.sut().into_iter().map(|(node, _)| node);
    let each = |of: &dyn Fn(&Node) -> String| text(distinct(nodes().map(of)));
    match field {
        "division" => text(division.name().to_owned()),
        "submitter" => text(form.submitter.to_string()),
        "system_type" => text(round.system_type.clone()),
        "status" => text(form.status.clone()),
        "number_of_nodes" => Value::from(system.sut().len()),
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
            each(&|n| none_or(joined(n.gpus.iter().map(|g| g.name.clone()))))
        }
        "accelerator_memory_capacity" => each(&|n| none_or(gpus(n, &|g| gib(g.bytes)))),
        "accelerator_frequency" => each(&|n| gpus(n, &|g| with_unit(g.max_mhz, "MHz"))),
        "accelerator_host_interconnect" => {
            each(&|n| none_or(gpus(n, &|g| g.pcie.clone().unwrap_or_default())))
        }
        "operating_system" => each(&|n| format!("{}, Linux {}", n.operating_system, n.kernel)),
        "other_software_stack" => each(&|n| n.gpu_driver.clone()),
        "is_network" => text("True".to_owned()),
        "network_type" => text(network_type(form, system)),
        "network_media" => text(distinct(
            nics(system).iter().filter_map(|n| n.media.clone()),
        )),
        "network_rate" => text(distinct(nics(system).iter().map(|n| speed(n)))),
        "nic_loadgen" => text(distinct(system.loadgen_nics().iter().map(|n| what(n)))),
        "number_nic_loadgen" => Value::from(system.loadgen_nics().len()),
        "net_software_stack_loadgen" => {
            text(stack(system, system.frontend, &system.loadgen_nics()))
        }
        "network_protocol" => text(protocol(form, system)),
        "number_connections" => Value::from(system.connections),
        "nic_sut" => text(distinct(system.sut_nics().iter().map(|n| what(n)))),
        "number_nic_sut" => Value::from(system.sut_nics().len()),
        "net_software_stack_sut" => each(&|n| stack(system, n, &system.sut_nics())),
        "network_topology" => text(topology(form, system)),
        _ => text(String::new()),
    }
}

pub(super) fn nics<'a>(system: &DescribedSystem<'a>) -> Vec<&'a Nic> {
    let mut all = system.loadgen_nics();
    all.extend(system.sut_nics());
    all
}

/// Joins distinct texts in their order; skips empty ones.
pub(super) fn distinct(all: impl Iterator<Item = String>) -> String {
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

/// `N/A` for empty text: a node without accelerators may not leave these fields empty.
fn none_or(text: String) -> String {
    match text.is_empty() {
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
pub(super) fn speed(nic: &Nic) -> String {
    match nic.speed_mbps {
        Some(mbps) if mbps >= 1000 => format!("{}G", mbps as f64 / 1000.0),
        Some(mbps) => format!("{mbps}M"),
        None => String::new(),
    }
}

/// The form's link layer, else the link layers of all NICs that carried samples.
pub(super) fn network_type(form: &Form, system: &DescribedSystem<'_>) -> String {
    match form.field("network_type") {
        "" => distinct(nics(system).iter().map(|n| n.link_layer.clone())),
        said => said.to_owned(),
    }
}

/// The protocol stack from layer 4 to layer 2, as `TCP/IPv4 over Ethernet`.
pub(super) fn protocol(form: &Form, system: &DescribedSystem<'_>) -> String {
    let layer = network_type(form, system);
    let v6 = |n: &&Nic| n.addresses.first().is_some_and(|a| a.contains(':'));
    let ip = match (nics(system).iter().all(v6), nics(system).iter().any(v6)) {
        (true, true) => "IPv6",
        (false, true) => "IPv4 and IPv6",
        _ => "IPv4",
    };
    match (system.fabric.as_str(), layer.as_str()) {
        (_, "") => String::new(),
        ("ib", "InfiniBand") => "InfiniBand reliable connection (RC) over InfiniBand".to_owned(),
        ("ib", layer) => format!("RoCE v2 (RC over UDP/{ip}) over {layer}"),
        (_, layer) => format!("TCP/{ip} over {layer}"),
    }
}

fn stack(system: &DescribedSystem<'_>, node: &Node, nics: &[&Nic]) -> String {
    let driver = |n: &&Nic| format!("{} {}", n.driver, n.firmware).trim().to_owned();
    let drivers = distinct(nics.iter().map(driver));
    let transport = match system.fabric.as_str() {
        "ib" => "libibverbs",
        _ => "kernel TCP",
    };
    let text = format!("Linux {} {transport}, {drivers}", node.kernel);
    text.trim_end_matches(", ").to_owned()
}

fn topology(form: &Form, system: &DescribedSystem<'_>) -> String {
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
