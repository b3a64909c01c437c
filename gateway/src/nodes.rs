//! `nodes.json`: the machines behind a gateway, written at its start for `qdl endpoints describe`.

use std::{io, path::Path};

use machine::{Node, Role};
use qdl::run::{Cluster, Described};
use serde::{Deserialize, Serialize};

use crate::run_file::read_json;

/// Name of the file.
const FILE: &str = "nodes.json";
/// Longest file that is read.
const LONGEST: u64 = 16 << 20;

/// A gateway's machine and those of its accelerators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewayNodes {
    /// Fabric between gateway and accelerators, as `tcp`.
    pub fabric: String,
    /// The gateway's machine.
    pub gateway: Node,
    /// The accelerators, in the order of the configuration.
    pub accelerators: Vec<AcceleratorNode>,
    /// The connections to them.
    pub connections: Vec<PathTime>,
}

/// An accelerator and its machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AcceleratorNode {
    /// Name of its engine, with the node's role if it computes one phase.
    pub engine: String,
    /// The machine; only its name where the accelerator did not describe itself.
    pub machine: Node,
}

/// A connection's time on an idle network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathTime {
    /// The accelerator's node and the connection's index, as `acc-01/0`.
    pub name: String,
    /// Median round trip without the engine's time, in microseconds, after the warm-up; `None`
    /// without a warm-up.
    pub network_us: Option<u64>,
}

impl GatewayNodes {
    /// Asks the accelerators of a warm cluster, and describes this machine, the node `node`. An
    /// accelerator without a description is logged.
    pub fn ask(cluster: &Cluster, node: &str) -> Self {
        let own = Node::of_this_machine(Role::Frontend, env!("CARGO_PKG_VERSION"));
        let machine = |described: Described| {
            let Described { node, description } = described;
            let said = description
                .and_then(|said| Node::of_session(&said.machine, Role::Accelerator, &node));
            said.unwrap_or_else(|why| unknown(node, &why))
        };
        let engines = cluster.engines().into_iter();
        let engines = engines.map(|(_, engine)| engine.titled());
        let paths = cluster.dispatcher().connection_records().into_iter();
        GatewayNodes {
            fabric: cluster.fabric(),
            gateway: match own {
                Ok(own) => Node {
                    node: node.to_owned(),
                    ..own
                },
                Err(why) => unknown(node.to_owned(), &why.to_string()),
            },
            accelerators: engines
                .zip(cluster.describe())
                .map(|(engine, described)| AcceleratorNode {
                    engine,
                    machine: machine(described),
                })
                .collect(),
            connections: paths
                .zip(cluster.connection_names())
                .map(|(path, name)| PathTime {
                    name,
                    network_us: path.warm_us,
                })
                .collect(),
        }
    }

    /// Writes the file into a folder.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        disk::write(&folder.join(FILE), text + "\n")
    }

    /// Reads the file of a folder.
    ///
    /// # Errors
    /// Names the file, and what is wrong with it.
    pub fn read(folder: &Path) -> Result<Self, String> {
        read_json(&folder.join(FILE), LONGEST)
    }
}

fn unknown(node: String, why: &str) -> Node {
    tracing::warn!("{node} is not described in {FILE}: {why}");
    Node {
        node,
        ..Node::default()
    }
}
