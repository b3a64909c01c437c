//! Drafts of what MLPerf Endpoints asks beside a client's result: `system_desc.json`, `point.yaml`
//! with the block `steady_state`, and a page on the network with its measured baseline latency.
//!
//! The rules are mlcommons/endpoints_policies' `endpoints_rules.md` (v1.0, 6b0b1ef): 2.1.1 asks
//! for the network, 8.2 and 8.3 for the files. A value that only a person knows is `FILL IN`, which
//! [`check()`] refuses.

mod check;
mod template;

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use fabric::kinds::NicFabric;
use machine::{Nic, Node};
use serde_json::Value;

use crate::{
    describe::{
        system::{self, of_nodes},
        used::UsedNode,
    },
    error::{self, Error},
};

use template::{Form, Known, fill};

pub use check::{CheckArgs, check};

/// The client's file, in its report folder.
const CLIENT_CONFIG: &str = "config.yaml";

/// An endpoint as its client sees it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The client's machine.
    pub client: Node,
    /// The gateway's machine.
    pub gateway: Node,
    /// Fabric between gateway and accelerators.
    pub fabric: String,
    /// The accelerators, in the order of the gateway's configuration.
    pub accelerators: Vec<EndpointNode>,
    /// The way from the client to the gateway.
    pub baseline: Baseline,
}

/// An accelerator behind an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointNode {
    /// The accelerator's machine.
    pub machine: Node,
    /// Name of its engine.
    pub engine: String,
    /// The longest round trip of its connections without load, in microseconds.
    pub network_us: Option<u64>,
}

/// The measured way from client to gateway.
#[derive(Clone, Debug)]
pub struct Baseline {
    /// The client's address on the way.
    pub client: IpAddr,
    /// The gateway's address.
    pub gateway: SocketAddr,
    /// IP routers on the way, if they could be counted.
    pub routers: Option<u32>,
    /// The measured round trips, in words.
    pub round_trips: String,
}

/// A client's configuration, as its report folder has it.
#[derive(Clone, Debug)]
pub struct ClientConfig(Value);

impl ClientConfig {
    /// Reads the file of a report folder.
    ///
    /// # Errors
    /// The file cannot be read; the text names it.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        Ok(ClientConfig(error::read_yaml(&folder.join(CLIENT_CONFIG))?))
    }

    /// The first address that the client asked.
    pub fn url(&self) -> Option<&str> {
        self.at(&["/endpoint_config/endpoints/0"])?.as_str()
    }

    /// The first value at one of these paths.
    fn at(&self, paths: &[&str]) -> Option<&Value> {
        let mut found = paths.iter().filter_map(|path| self.0.pointer(path));
        found.find(|value| !value.is_null())
    }

    /// The values of a `point.yaml`.
    fn point(&self) -> Known {
        let datasets = self.0["datasets"].as_array().into_iter().flatten();
        let mut datasets = datasets.filter(|set| set["type"] != "accuracy");
        let dataset = datasets.next().and_then(|set| set.get("name"));
        // Releases before v1.0 of the rules have other names for seeds.
        let found = [
            (
                "concurrency",
                self.at(&["/settings/load_pattern/target_concurrency"]),
            ),
            ("load_pattern", self.at(&["/settings/load_pattern/type"])),
            (
                "min_duration_ms",
                self.at(&["/settings/runtime/min_duration_ms"]),
            ),
            (
                "min_sample_count",
                self.at(&["/settings/runtime/n_samples_to_issue"]),
            ),
            (
                "stream_all_chunks",
                self.at(&["/settings/client/stream_all_chunks"]),
            ),
            (
                "scheduler_rng_seed",
                self.at(&[
                    "/settings/runtime/scheduler_rng_seed",
                    "/settings/runtime/scheduler_random_seed",
                ]),
            ),
            (
                "sample_index_rng_seed",
                self.at(&[
                    "/settings/runtime/sample_index_rng_seed",
                    "/settings/runtime/dataloader_random_seed",
                ]),
            ),
            (
                "model_seed",
                self.at(&["/settings/runtime/model_seed", "/model_params/seed"]),
            ),
            ("model_name", self.at(&["/model_params/name"])),
            ("dataset", dataset),
        ];
        let found = found
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?.clone())));
        let mut known: Known = found.collect();
        if self.at(&["/settings/warmup/enabled"]) == Some(&Value::Bool(false)) {
            let nothing = [
                "warmup_duration_s",
                "warmup_issued",
                "warmup_completed",
                "warmup_concurrency",
            ];
            known.extend(nothing.map(|name| (name, 0.into())));
            known.insert("warmup_source", "none".into());
        }
        known
    }
}

/// Writes the drafts into a client's report folder. A file that exists is kept. Returns each path,
/// and whether it was written.
///
/// # Errors
/// A file cannot be written; the text names it.
pub fn draft(
    endpoint: &Endpoint,
    client: &ClientConfig,
    folder: &Path,
) -> Result<Vec<(PathBuf, bool)>, Error> {
    let point = fill(include_str!("point.yaml"), Form::Json, &client.point(), &[]);
    let drafts = [
        ("system_desc.json", system_desc(endpoint, client)),
        ("point.yaml", point),
        ("documentation/network.md", network(endpoint, client)),
    ];
    let mut written = Vec::new();
    for (name, text) in drafts {
        let path = folder.join(name);
        let is_new = !path.exists();
        if is_new {
            error::write(&path, text)?;
        }
        written.push((path, is_new));
    }
    Ok(written)
}

/// A type of node: equal machines.
struct NodeType {
    known: Known,
    accelerators: Option<Known>,
    number: u64,
}

fn system_desc(endpoint: &Endpoint, client: &ClientConfig) -> String {
    let mut types: Vec<NodeType> = Vec::new();
    for machine in endpoint.machines() {
        let (known, accelerators) = node_type(machine);
        let is_same = |t: &&mut NodeType| t.known == known && t.accelerators == accelerators;
        match types.iter_mut().find(is_same) {
            Some(same) => same.number += 1,
            None => types.push(NodeType {
                known,
                accelerators,
                number: 1,
            }),
        }
    }
    let total: u64 = types.iter().map(|t| t.number).sum();
    let size = types.iter().map(|t| {
        let each = t
            .accelerators
            .as_ref()
            .and_then(|a| a["accelerators_per_node"].as_u64());
        format!("{} accelerators", t.number * each.unwrap_or(0))
    });
    let size = size.collect::<Vec<_>>().join(" + ");
    let count = types.len();
    let nodes = types.into_iter().enumerate().map(|(id, mut t)| {
        t.known.insert("id", id.into());
        t.known.insert("number_of_nodes", t.number.into());
        let accelerator = include_str!("accelerator.json").trim_end();
        let info = t
            .accelerators
            .map(|known| fill(accelerator, Form::Json, &known, &[]));
        let info = info.unwrap_or_default();
        let node = include_str!("node_type.json").trim_end();
        fill(node, Form::Json, &t.known, &[("accelerator_info", &info)])
    });
    let nodes = nodes.collect::<Vec<_>>().join(",\n");
    let engines = endpoint.accelerators.iter().map(|a| a.engine.clone());
    let known = Known::from([
        ("system_size", size.into()),
        ("system_node_ensemble_count", count.into()),
        ("system_node_ensemble_total", total.into()),
        ("endpoint_url", client.url().unwrap_or_default().into()),
        (
            "node_config",
            format!(
                "qdl gateway {} before {} accelerators (engine {}) over {}",
                endpoint.gateway.version,
                endpoint.accelerators.len(),
                system::distinct(engines),
                endpoint.fabric
            )
            .into(),
        ),
    ]);
    let template = include_str!("system_desc.json");
    // The nodes' own texts have no holes any more.
    fill(template, Form::Json, &known, &[("node_types", &nodes)])
}

impl Endpoint {
    /// The machines of the endpoint, each once: nodes of one host share a machine.
    fn machines(&self) -> Vec<&Node> {
        let nodes = self.accelerators.iter().map(|a| &a.machine);
        let mut machines: Vec<&Node> = Vec::new();
        for node in std::iter::once(&self.gateway).chain(nodes) {
            let is_same = |other: &&mut &Node| !node.host.is_empty() && other.host == node.host;
            match machines.iter_mut().find(is_same) {
                // The node with GPUs describes more.
                Some(same) if same.gpus.len() < node.gpus.len() => *same = node,
                Some(_) => {}
                None => machines.push(node),
            }
        }
        machines
    }
}

/// The fields of a node's type, and those of its accelerators, if it has some.
fn node_type(node: &Node) -> (Known, Option<Known>) {
    let used = [UsedNode::new(node.clone(), &[], &NicFabric::default())];
    let of = |field: &'static str| {
        let value = of_nodes(&used, field).unwrap_or_default();
        let number = value.as_str().and_then(|text| text.parse::<u64>().ok());
        (field, number.map_or(value, Value::from))
    };
    let mut known = Known::from(
        [
            "host_processor_model_name",
            "host_processors_per_node",
            "host_processor_core_count",
            "host_memory_capacity",
            "host_memory_configuration",
            "host_network_card_count",
            "host_networking",
            "host_storage_capacity",
            "host_storage_type",
            "operating_system",
        ]
        .map(of),
    );
    let accelerators = (!node.gpus.is_empty()).then(|| {
        known.insert("driver", node.gpu_driver.clone().into());
        Known::from(
            [
                "accelerator_model_name",
                "accelerators_per_node",
                "accelerator_memory_capacity",
                "accelerator_host_interconnect",
            ]
            .map(of),
        )
    });
    (known, accelerators)
}

fn network(endpoint: &Endpoint, client: &ClientConfig) -> String {
    let way = &endpoint.baseline;
    let machine = |node: &Node| format!("{}, {}", node.host, node.operating_system);
    let hosts = endpoint.accelerators.iter().map(|a| a.machine.node.clone());
    let mut known = Known::from([
        ("client_host", endpoint.client.host.clone().into()),
        ("gateway_host", endpoint.gateway.host.clone().into()),
        ("accelerator_hosts", system::distinct(hosts).into()),
        ("fabric", endpoint.fabric.clone().into()),
        ("client", machine(&endpoint.client).into()),
        ("client_nic", nic_at(&endpoint.client, way.client).into()),
        (
            "gateway_nic",
            nic_at(&endpoint.gateway, way.gateway.ip()).into(),
        ),
        ("endpoint_url", client.url().unwrap_or_default().into()),
        ("baseline", way.round_trips.clone().into()),
    ]);
    if let Some(routers) = way.routers {
        known.insert("routers", routers.to_string().into());
    }
    let rows = endpoint.accelerators.iter().map(|a| {
        let nics = a.machine.nics.iter().filter(|nic| nic.up).map(interconnect);
        let time = a
            .network_us
            .map_or("not measured".to_owned(), |us| format!("{us} us"));
        let (node, engine) = (&a.machine.node, &a.engine);
        format!(
            "| {node} | {engine} | {} | {time} |",
            system::distinct(nics)
        )
    });
    let rows = rows.collect::<Vec<_>>().join("\n");
    fill(
        include_str!("network.md"),
        Form::Plain,
        &known,
        &[("accelerators", &rows)],
    )
}

/// An address, and the NIC of the machine that has it.
fn nic_at(node: &Node, address: IpAddr) -> String {
    let has = |nic: &&Nic| nic.addresses.iter().any(|own| own.parse() == Ok(address));
    match node.nics.iter().find(has) {
        Some(nic) => format!("{address}, {}", interconnect(nic)),
        None if address.is_loopback() => format!("{address}, loopback: one machine"),
        None => format!("{address}, {}: interconnect and rate", template::FILL_IN),
    }
}

/// A NIC, as `eth0 (Ethernet, 200G, MTU 9000)`.
fn interconnect(nic: &Nic) -> String {
    let mtu = nic.mtu.map_or(String::new(), |mtu| format!("MTU {mtu}"));
    let facts = [
        nic.link_layer.clone(),
        system::speed(nic),
        nic.model.clone(),
        mtu,
    ];
    let facts: Vec<_> = facts.into_iter().filter(|fact| !fact.is_empty()).collect();
    format!("{} ({})", nic.name, facts.join(", "))
}

#[cfg(test)]
mod tests;
