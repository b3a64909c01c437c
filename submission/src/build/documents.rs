//! Writes the system's JSON and the pages of `documentation/`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use super::{
    Material, batching,
    described::{described, runs_of},
};
use crate::{
    configs::RunConfigs,
    describe::{
        Node, diagram,
        form::Form,
        pages::{self, Rate},
        system,
    },
    error::{self, Error},
    layout::{self, Name, ResultId, RunKind, Tree},
    manifest,
};

/// Text of the session API's page: the project's protocol documentation.
const SESSION_API: &str = include_str!("../../../docs/protocol.md");
/// Assumed bytes of a sample's element if the form's input_data_types names no type.
const ELEMENT_BYTES: u64 = 4;

/// Writes all documents. Skips those of nodes without a description; `rules` reports them missing.
pub(super) fn write(
    material: &Material<'_>,
    tree: &Tree,
    from: &BTreeMap<ResultId, BTreeMap<RunKind, PathBuf>>,
) -> Result<(), Error> {
    let documents = tree.documentation();
    error::write(&documents.join(layout::SESSION_PAGE), SESSION_API)?;
    if !material.form.quantization.trim().is_empty() {
        let models: BTreeSet<&Name> = from.keys().map(|place| &place.model).collect();
        let page = pages::quantization(material.form, models.into_iter());
        error::write(&documents.join(layout::QUANTIZATION_PAGE), page)?;
    }
    let systems: BTreeSet<&Name> = from.keys().map(|place| &place.system).collect();
    for system in systems {
        of_system(material, tree, system, from.keys())?;
    }
    Ok(())
}

/// Writes the files of one system: nodes, system JSON, network, bandwidth and data path pages.
fn of_system<'a>(
    material: &Material<'_>,
    tree: &Tree,
    name: &Name,
    places: impl Iterator<Item = &'a ResultId>,
) -> Result<(), Error> {
    let form = &material.form.of_system(name);
    let has = |node: &Node| {
        let names = || material.runs_of_system(name).flat_map(|run| &run.nodes);
        names().next().is_none() || names().any(|n| **n == node.node)
    };
    let nodes = material.nodes.iter().filter(|node| has(node));
    let nodes: Vec<Node> = nodes.map(|n| with_ecc(form, n)).collect();
    for node in &nodes {
        let known = Name::new(&node.node).map_err(|why| {
            let what = "a node's description has a name that cannot be used";
            Error(format!("{what}: {why}"))
        })?;
        let path = tree.nodes(name).join(node.role.file(&known));
        error::write_json(&path, node)?;
    }
    let Some(system) = described(tree, name) else {
        return Ok(());
    };
    let mut configs = RunConfigs::default();
    if let Some((folder, run)) = runs_of(tree, name).first() {
        let nodes = run.accelerators.iter();
        for node in nodes.filter_map(|n| Name::new(&n.node).ok()) {
            let path = folder.join(manifest::accelerator_yaml(&node));
            // `rules` reports a configuration that cannot be read.
            let _ = configs.read(Some(&node), &error::read(&path).unwrap_or_default());
        }
    }
    let json = system::json(material.round, material.division, form, &system);
    error::write_json(&tree.system_json(name), &json)?;
    let rates = places.filter(|place| place.system == *name);
    let rates: Vec<_> = rates.filter_map(|place| rate(material, place)).collect();
    for (page, text) in [
        (layout::DIAGRAM, diagram::svg(form, &system)),
        (layout::NETWORK_PAGE, pages::network(form, &system)),
        (layout::BANDWIDTH_PAGE, pages::bandwidth(&system, &rates)),
        (layout::PATH_PAGE, pages::data_path(form, &system, &rates)),
        (layout::BATCHING_PAGE, batching::page(name, &configs)),
    ] {
        error::write(&tree.page(name, page), text)?;
    }
    Ok(())
}

/// Takes ECC from the form for memory whose machine did not report it.
fn with_ecc(form: &Form, node: &Node) -> Node {
    let mut node = node.clone();
    let said = |answer: &str| match answer {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    };
    node.memory.ecc = node.memory.ecc.or(said(&form.host_memory_ecc));
    for gpu in &mut node.gpus {
        gpu.ecc = gpu.ecc.or(said(&form.accelerator_memory_ecc));
    }
    node
}

fn rate<'a>(material: &'a Material<'_>, id: &'a ResultId) -> Option<Rate<'a>> {
    let mut runs = material.runs_of(id);
    let run = runs.find(|run| run.kinds.contains(&RunKind::Performance));
    let figures = [
        "result_samples_per_second",
        "result_completed_samples_per_sec",
    ];
    let per_second = run.and_then(|r| figures.iter().find_map(|key| r.detail.number(key)));
    // In SingleStream and MultiStream the rate is the inverse of the mean latency.
    let stream = run.and_then(|r| r.detail.number("result_mean_latency_ns"));
    let stream = stream.map(|ns| 1e9 / ns.max(1.0));
    let types = material.form.models.get(&*id.model);
    let types = types.and_then(|m| m.get("input_data_types"));
    let model = material.round.models.get(&id.model)?;
    Some(Rate {
        id,
        model,
        per_second: per_second.or(stream).unwrap_or(0.0),
        input_bytes: (model.ingress_bytes)
            .or(types.and_then(|t| element_bytes(t)))
            .unwrap_or(ELEMENT_BYTES),
        output_bytes: element_bytes(&model.dtype).unwrap_or(ELEMENT_BYTES),
    })
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
    use crate::{layout::Division, round::Round};

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    #[test]
    fn a_description_is_written_into_the_tree_alone() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path().join("tree");
        let form = "{submitter: us, system: sys, status: available}";
        let form: Form = error::yaml(form).expect("a form");
        let round = Round::find(crate::round::newest()).expect("built in");
        let tree = Tree::new(&root, Division::Network, &form.submitter);
        let from = BTreeMap::from([(
            ResultId {
                system: name("sys"),
                model: name("rgat"),
                scenario: name("Offline"),
            },
            BTreeMap::new(),
        )]);
        let outside = place.path().join("outside/of").display().to_string();
        for node in [&outside, "../../../../../it", "..", "", ".it"] {
            // As an accelerator reports it (`described`).
            let told = Node {
                node: node.to_owned(),
                ..Node::default()
            };
            let material = Material {
                round: &round,
                division: Division::Network,
                form: &form,
                nodes: &[told],
                configurations: &BTreeMap::new(),
                source: None,
                runs: &[],
            };
            let error = write(&material, &tree, &from).expect_err("no name");
            assert!(error.to_string().contains("cannot be used"), "{error}");
            let made = layout::folders(place.path());
            assert_eq!(made, ["tree"], "{node:?} led out of the tree");
        }
        let role = format!("{{\"role\": \"{outside}\"}}");
        let role: Result<Node, _> = serde_json::from_str(&role);
        assert!(
            role.is_err(),
            "a role becomes the beginning of a file's name"
        );
    }

    #[test]
    fn an_element_has_the_bytes_of_its_type() {
        for (types, bytes) in [
            ("int32", Some(4)),
            ("int32, fp16", Some(4)),
            ("fp8", Some(1)),
            ("int64", Some(8)),
            ("byte", Some(1)),
            ("none", None),
            ("fp8 e4m3", Some(1)),
        ] {
            assert_eq!(element_bytes(types), bytes, "{types}");
        }
    }
}
