//! `qdl describe`: describes this node and, with `--config`, all nodes of a configuration.

use std::path::Path;

use frontend_config::FrontendFile;
use machine::{Node, Role};
use qdl::run::{Described, descriptions};
use submission::{
    Error,
    command::{self, DescribeArgs, NodeAnswer},
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs `qdl describe`.
pub fn command(args: &DescribeArgs) -> Result<bool, Error> {
    command::describe(args, VERSION, &all)
}

/// Returns the description of this machine, the node `node`, as JSON.
pub fn own(node: &str) -> Result<String, String> {
    Node::describe_as_json(Role::Frontend, VERSION, node)
}

fn all(path: &Path) -> Result<Vec<NodeAnswer>, String> {
    let config = FrontendFile::load(path, None).map_err(|e| e.to_string())?;
    let here = NodeAnswer {
        node: config.cluster.node.clone(),
        said: own(&config.cluster.node).map(|machine| (machine, None)),
    };
    let there = descriptions(&config.cluster).map_err(|e| e.to_string())?;
    let there = there
        .into_iter()
        .map(|Described { node, description }| NodeAnswer {
            node,
            said: description.map(|said| (said.machine, Some(said.config))),
        });
    Ok(std::iter::once(here).chain(there).collect())
}
