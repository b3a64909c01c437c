//! `qdl describe`: describes this node and, with `--config`, all nodes of a configuration.

use std::path::Path;

use machine::{Node, Role};
use qdl::{
    config::{FrontendConfig, load_frontend},
    run::{Described, descriptions},
};
use submission::{
    Error,
    command::{self, DescribeArgs, NodeAnswer},
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs `qdl describe`.
pub fn command(args: &DescribeArgs) -> Result<bool, Error> {
    command::describe(args, VERSION, &all)
}

/// Returns the description of this machine, as JSON.
pub fn own(config: &FrontendConfig) -> Result<String, String> {
    Node::describe_as_json(Role::Frontend, VERSION, &config.node)
}

fn all(path: &Path) -> Result<Vec<NodeAnswer>, String> {
    let config = load_frontend(path).map_err(|e| e.to_string())?;
    let here = NodeAnswer {
        node: config.node.clone(),
        said: own(&config).map(|machine| (machine, None)),
    };
    let there = descriptions(&config).map_err(|e| e.to_string())?;
    let there = there
        .into_iter()
        .map(|Described { node, description }| NodeAnswer {
            node,
            said: description.map(|said| (said.machine, Some(said.config))),
        });
    Ok(std::iter::once(here).chain(there).collect())
}
