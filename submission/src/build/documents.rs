//! Writes the system's JSON and the pages of `documentation/`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use machine::Node;

use super::{Material, described, rates};
use crate::{
    describe::{diagram, file_of, form::Form, pages, system},
    error::{self, Error},
    layout::{self, Name, ResultId, RunKind, Tree},
};

/// Text of the session API's page: the project's protocol documentation.
const SESSION_API: &str = include_str!("../../../docs/protocol.md");

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
        of_system(material, tree, system)?;
    }
    Ok(())
}

/// Writes the files of one system: nodes, system JSON, network, bandwidth and data path pages.
fn of_system(material: &Material<'_>, tree: &Tree, name: &Name) -> Result<(), Error> {
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
        let path = tree.nodes(name).join(file_of(node.role, &known));
        error::write_json(&path, node)?;
    }
    let Some(system) = described(tree, name) else {
        return Ok(());
    };
    let json = system::json(material.round, material.division, form, &system);
    error::write_json(&tree.system_json(name), &json)?;
    let rates = rates(tree, material.round, name);
    for (page, text) in [
        (layout::DIAGRAM, diagram::svg(form, &system)),
        (layout::NETWORK_PAGE, pages::network(form, &system)),
        (layout::BANDWIDTH_PAGE, pages::bandwidth(&system, &rates)),
        (layout::PATH_PAGE, pages::data_path(form, &system, &rates)),
        (layout::BATCHING_PAGE, pages::batching(name, &system)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        layout::Division,
        round::{Round, newest},
        rules::tests::sound::{form, name},
    };

    #[test]
    fn a_description_is_written_into_the_tree_alone() {
        let place = tempfile::tempdir().expect("a folder");
        let (form, round) = (form("rgat"), Round::find(newest()).expect("built in"));
        let root = place.path().join("tree");
        let tree = Tree::new(&root, Division::Network, &form.submitter);
        let id = ResultId {
            system: name("sys"),
            model: name("rgat"),
            scenario: name("Offline"),
        };
        let from = BTreeMap::from([(id, BTreeMap::new())]);
        let outside = place.path().join("outside/of").display().to_string();
        for node in [&outside, "../../../../../it", "..", "", ".it"] {
            // As an accelerator reports it.
            let sent = Node {
                node: node.to_owned(),
                ..Node::default()
            };
            let material = Material {
                round: &round,
                division: Division::Network,
                form: &form,
                nodes: &[sent],
                configurations: &BTreeMap::new(),
                source: None,
                runs: &[],
            };
            let error = write(&material, &tree, &from).expect_err("no name");
            assert!(error.to_string().contains("cannot be used"), "{error}");
            let made = layout::folders(place.path());
            assert_eq!(made, ["tree"], "{node:?} led out of the tree");
        }
        let role = serde_json::json!({"role": outside});
        let role: Result<Node, _> = serde_json::from_value(role);
        assert!(role.is_err(), "a role begins a file's name: {role:?}");
    }
}
