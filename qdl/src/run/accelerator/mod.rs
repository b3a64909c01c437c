//! The accelerator's side of a run: a node serves one frontend after another.

mod budget;
mod data_port;
mod grants;
mod node;
mod node_core;
mod node_state;
mod readings;
mod session;

pub use node::{LoadingNode, Node};
pub use node_core::{NodeCore, NodeHandle, NodeParts, Stop};
pub use node_state::{Describe, EngineTotals, NodeFigures, NodeParams};
