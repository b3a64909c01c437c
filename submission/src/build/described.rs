//! Reads a system's machines from a tree: its nodes' descriptions, and what their sessions
//! recorded.

use std::path::PathBuf;

use record::{Manifest, NodeRecord};

use crate::{
    describe::{Node, Role, system::DescribedSystem, used::UsedNode},
    error,
    layout::{self, Name, RunKind, Tree},
    manifest::{self, FRONTEND_YAML},
};

/// The records of a system's runs and their folders, performance runs first.
pub(crate) fn runs_of(tree: &Tree, system: &Name) -> Vec<(PathBuf, Manifest)> {
    let results = tree.results(system);
    let kinds = |kind: RunKind| results.iter().map(move |id| tree.kept(id, &kind));
    let all = kinds(RunKind::Performance).chain(kinds(RunKind::Accuracy));
    all.filter_map(|folder| Some((folder.clone(), manifest::read(&folder).ok()??)))
        .collect()
}

/// A system's machines. Nodes of one machine are one; a session's role goes before a
/// description's. `None` if no description is LoadGen's node's.
pub(crate) fn described(tree: &Tree, system: &Name) -> Option<DescribedSystem> {
    let runs = runs_of(tree, system).into_iter();
    let (folder, manifest) = { runs }.next().unwrap_or_default();
    let records: Vec<(Role, &NodeRecord)> = manifest::nodes(&manifest).collect();
    let (mut frontend, mut machines): (_, Vec<(Option<&NodeRecord>, UsedNode)>) =
        (None, Vec::new());
    let nodes = tree.nodes(system);
    for file in layout::files(&nodes) {
        let Ok(node) = error::read_json::<Node>(&nodes.join(file)) else {
            continue;
        };
        let of_node = records.iter().find(|(_, record)| record.node == node.node);
        let role = of_node.map_or(node.role, |(role, _)| *role);
        let copy = match role {
            Role::Frontend => FRONTEND_YAML.to_owned(),
            Role::Accelerator => match Name::new(&node.node) {
                Ok(name) => manifest::accelerator_yaml(&name),
                Err(_) => continue,
            },
        };
        let yaml = error::read(&folder.join(copy)).unwrap_or_default();
        let used = UsedNode::new(node, &yaml, &manifest.fabric);
        if role == Role::Frontend {
            frontend = Some(used);
            continue;
        }
        let record = of_node.map(|(_, record)| *record);
        let same = |(other, _): &&mut (Option<&NodeRecord>, UsedNode)| {
            record.zip(*other).and_then(|(a, b)| a.same_machine(b)) == Some(true)
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
    })
}
