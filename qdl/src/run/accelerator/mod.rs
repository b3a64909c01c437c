//! The accelerator's side of a run: a node serves one frontend after another.

mod budget;
mod data_port;
mod grants;
mod node;
mod node_state;
mod readings;
mod session;

pub use node::{LoadingNode, Node, Stop};
pub use node_state::{Describe, EngineTotals, NodeFigures, NodeParams};
