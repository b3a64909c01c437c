//! Reads a system's machines and rates from a tree: its nodes' descriptions and configurations, and
//! the logs of its performance runs.

use std::path::PathBuf;

use engines::EngineKind;
use loadgen_log::{DETAIL, Detail};
use machine::{Node, Role};
use record::{Manifest, NodeRecord};
use serde_json::{Map, Value};

use crate::{
    configs::RunConfigs,
    describe::{pages::Rate, system::DescribedSystem, used::UsedNode},
    error,
    layout::{self, Name, RunKind, Tree},
    manifest,
    round::Round,
};

/// Assumed bytes of a sample's element if measurements.json's input_data_types names no type.
const ELEMENT_BYTES: u64 = 4;

/// The records of a system's runs and their folders, performance runs first.
pub(crate) fn runs_of(tree: &Tree, system: &Name) -> Vec<(PathBuf, Manifest)> {
    let results = tree.results(system);
    let kinds = |kind: RunKind| results.iter().map(move |id| tree.kept(id, &kind));
    let all = kinds(RunKind::Performance).chain(kinds(RunKind::Accuracy));
    all.filter_map(|folder| Some((folder.clone(), manifest::read(&folder).ok()??)))
        .collect()
}

/// A system's machines, as its first run used them. Nodes of one machine are one entry. Where a
/// run's record and a description differ about a role, the record counts. `None` without a
/// description of LoadGen's node.
pub(crate) fn described(tree: &Tree, system: &Name) -> Option<DescribedSystem> {
    let runs = runs_of(tree, system).into_iter();
    let (folder, manifest) = { runs }.next().unwrap_or_default();
    // `rules` reports a configuration that cannot be read.
    let (configs, _) = RunConfigs::kept(&folder);
    let records: Vec<(Role, &NodeRecord)> = manifest::nodes(&manifest).collect();
    let (mut frontend, mut machines): (_, Vec<(Option<&NodeRecord>, UsedNode)>) =
        (None, Vec::new());
    let nics = configs
        .frontend
        .as_ref()
        .map_or(&[][..], |c| &c.cluster.nics);
    let fabric = nics.first().map(|nic| nic.fabric.clone());
    let fabric = fabric.unwrap_or_default();
    let nodes = tree.nodes(system);
    for file in layout::files(&nodes) {
        let Ok(node) = error::read_json::<Node>(&nodes.join(file)) else {
            continue;
        };
        let of_node = records.iter().find(|(_, record)| record.node == node.node);
        let role = of_node.map_or(node.role, |(role, _)| *role);
        if role == Role::Frontend {
            frontend = Some(UsedNode::new(node, nics, &fabric));
            continue;
        }
        let config = configs.accelerators.get(&*node.node);
        let engine = configs.engines.get(&*node.node);
        let mut used = UsedNode::new(node, config.map_or(&[], |c| &c.nics), &fabric);
        used.is_client = engine.is_some_and(|engine| engine.kind == EngineKind::Http);
        let record = of_node.map(|(_, record)| *record);
        let same = |(other, _): &&mut (Option<&NodeRecord>, UsedNode)| {
            record
                .zip(*other)
                .and_then(|(a, b)| a.facts.same_machine(&b.facts))
                == Some(true)
        };
        match machines.iter_mut().find(same) {
            Some((_, machine)) => machine.join(used),
            None => machines.push((record, used)),
        }
    }
    Some(DescribedSystem {
        frontend: frontend?,
        accelerators: machines.into_iter().map(|(_, machine)| machine).collect(),
        connections: manifest.connections,
        engines: configs.engines.into_iter().collect(),
    })
}

/// The rates of a system's results, of models that the round has.
pub(crate) fn rates<'a>(tree: &Tree, round: &'a Round, system: &Name) -> Vec<Rate<'a>> {
    let results = tree.results(system).into_iter();
    let rates = results.filter_map(|id| {
        let scenario = tree.scenario(&id);
        let logs = layout::run_folder(&scenario, &RunKind::Performance);
        let detail = Detail::open(&logs.join(DETAIL)).ok();
        let row = round.scenarios.get(&*id.scenario);
        let fields: Map<String, Value> =
            error::read_json(&scenario.join("measurements.json")).unwrap_or_default();
        let types = fields.get("input_data_types").and_then(Value::as_str);
        let model = round.models.get(&id.model)?;
        Some(Rate {
            per_second: row.and_then(|row| row.rate(&detail?)),
            input_bytes: (model.ingress_bytes)
                .or(types.and_then(element_bytes))
                .unwrap_or(ELEMENT_BYTES),
            output_bytes: element_bytes(&model.dtype).unwrap_or(ELEMENT_BYTES),
            model,
            id,
        })
    });
    rates.collect()
}

/// Bytes of the largest element type in a text such as `int32, fp16`.
fn element_bytes(types: &str) -> Option<u64> {
    let words = types.split(|c: char| !c.is_ascii_alphanumeric());
    let bytes = words.filter_map(|word| match word {
        "byte" | "bool" => Some(1),
        word => {
            let bits = word.trim_start_matches(|c: char| !c.is_ascii_digit());
            let bits: u64 = bits.split('e').next()?.parse().ok()?;
            (1..=128).contains(&bits).then(|| bits.div_ceil(8))
        }
    });
    bytes.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_has_the_bytes_of_its_type() {
        for (types, bytes) in [
            ("int32", Some(4)),
            ("int32, fp16", Some(4)),
            ("int64", Some(8)),
            ("byte", Some(1)),
            ("none", None),
            ("fp8 e4m3", Some(1)),
        ] {
            assert_eq!(element_bytes(types), bytes, "{types}");
        }
    }
}
