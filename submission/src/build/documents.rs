//! The system's JSON and the pages of `documentation/`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use serde_json::Value;

use super::{Kind, Material, Run};
use crate::{
    describe::{
        Node, diagram,
        pages::{self, Rate},
        system::{self, System},
    },
    error::{self, Error},
    layout::{self, Place, Tree},
    left::{self, FRONTEND_YAML},
};

/// The session API, as the project documents it.
const SESSION_API: &str = include_str!("../../../docs/protocol.md");
/// Bytes of an element where input_data_types does not say.
const ELEMENT_BYTES: u64 = 4;

/// Writes them; what no node was described for is left out, and found missing by the checks.
pub(super) fn write(
    material: &Material<'_>,
    tree: &Tree,
    from: &BTreeMap<Place, BTreeMap<String, PathBuf>>,
) -> Result<(), Error> {
    let documents = tree.documentation();
    error::write(&documents.join(layout::SESSION_PAGE), SESSION_API)?;
    let nodes: Vec<Node> = material
        .nodes
        .iter()
        .map(|n| with_ecc(material, n))
        .collect();
    for node in &nodes {
        let folder = documents.join("nodes").join(&material.form.system);
        error::write_json(
            &folder.join(format!("{}-{}.json", node.role, node.node)),
            node,
        )?;
    }
    let run = material
        .runs
        .iter()
        .find(|r| r.kinds.contains(&Kind::Performance));
    let run = run.or(material.runs.first());
    let Some(frontend) = nodes.iter().find(|n| n.role == "frontend") else {
        return Ok(());
    };
    let accelerators = nodes.iter().filter(|n| n.role != "frontend");
    let yaml = |file: PathBuf| error::read(&file).unwrap_or_default();
    let own = run.map(|r| yaml(r.file(FRONTEND_YAML))).unwrap_or_default();
    let system = System {
        frontend,
        frontend_nics: used_nics(frontend, &own),
        accelerators: accelerators
            .map(|node| {
                let beside = run.map(|r| r.file(&left::accelerator_yaml(&node.node)));
                let given = material.configurations.get(&node.node).cloned();
                let text = given.or(beside).map(yaml).unwrap_or_default();
                (node, used_nics(node, &text))
            })
            .collect(),
        fabric: run.map(|r| r.left.fabric.clone()).unwrap_or_default(),
        connections: run.map_or(0, |r| r.left.connections),
    };
    let json = system::json(material.round, material.form, &system);
    error::write_json(&tree.system_json(&material.form.system), &json)?;
    error::write(
        &documents.join(layout::DIAGRAM),
        diagram::svg(material.form, &system),
    )?;
    error::write(
        &documents.join(layout::NETWORK_PAGE),
        pages::network(material.form, &system),
    )?;
    let rates: Vec<_> = from
        .keys()
        .filter_map(|place| rate(material, place))
        .collect();
    error::write(
        &documents.join(layout::BANDWIDTH_PAGE),
        pages::bandwidth(&system, &rates),
    )
}

/// What the form says of ECC, where the machine did not.
fn with_ecc(material: &Material<'_>, node: &Node) -> Node {
    let mut node = node.clone();
    let said = |answer: &str| match answer {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    };
    node.memory.ecc = node.memory.ecc.or(said(&material.form.host_memory_ecc));
    for gpu in &mut node.gpus {
        gpu.ecc = gpu.ecc.or(said(&material.form.accelerator_memory_ecc));
    }
    node
}

/// The NICs that a configuration names, by device or by address.
fn used_nics(node: &Node, yaml: &str) -> BTreeSet<String> {
    let config: Value = error::yaml(yaml).unwrap_or_default();
    let entries = config.get("nics").and_then(Value::as_array).cloned();
    let mut used = BTreeSet::new();
    for entry in entries.unwrap_or_default() {
        let of = |key: &str| {
            entry
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let device = of("device");
        // 10.0.0.1, 10.0.0.1:7410, [fd00::1]:7410
        let address = [of("address"), of("listen")]
            .into_iter()
            .find(|a| !a.is_empty());
        let address = address.unwrap_or_default();
        let address = match address.strip_prefix('[').and_then(|a| a.split_once(']')) {
            Some((v6, _)) => v6.to_owned(),
            None if address.matches(':').count() == 1 => {
                address.split(':').next().unwrap_or_default().to_owned()
            }
            None => address,
        };
        let is_it = |nic: &&crate::describe::Nic| {
            (!device.is_empty() && nic.name == device)
                || (device.is_empty() && nic.addresses.contains(&address))
        };
        used.extend(node.nics.iter().find(is_it).map(|nic| nic.name.clone()));
    }
    used
}

fn rate<'a>(material: &'a Material<'_>, place: &'a Place) -> Option<Rate<'a>> {
    let is_it = |run: &&Run| {
        run.model == place.model
            && run.scenario == place.scenario
            && run.kinds.contains(&Kind::Performance)
    };
    let run = material.runs.iter().find(is_it);
    let figures = [
        "result_samples_per_second",
        "result_completed_samples_per_sec",
    ];
    let per_second = run.and_then(|r| figures.iter().find_map(|key| r.detail.number(key)));
    // A stream's rate is what its mean latency leaves.
    let stream = run
        .and_then(|r| r.detail.number("result_mean_latency_ns"))
        .map(|ns| 1e9 / ns.max(1.0));
    let types = material
        .form
        .models
        .get(&place.model)
        .and_then(|m| m.get("input_data_types"));
    let bits: String = types
        .map(|t| t.chars().filter(char::is_ascii_digit).collect())
        .unwrap_or_default();
    let bytes = match bits.as_str() {
        "8" => 1,
        "16" => 2,
        "64" => 8,
        _ => ELEMENT_BYTES,
    };
    Some(Rate {
        place,
        model: material.round.models.get(&place.model)?,
        per_second: per_second.or(stream).unwrap_or(0.0),
        element_bytes: bytes,
    })
}
