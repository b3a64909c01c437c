//! What a submission says of its machines: a description of each node ([`machine::Node`]), and
//! [`form`] with what no machine reports. Both become the system's JSON ([`system`]), a diagram
//! ([`diagram`]) and pages on network, bandwidths and batching ([`pages`]).

pub(crate) mod diagram;
pub(crate) mod escape;
pub(crate) mod form;
pub(crate) mod pages;
pub(crate) mod system;
pub(crate) mod used;

use machine::Role;

use crate::layout::Name;

/// File name of a node's description, in the folder [`crate::layout::Tree::nodes`].
pub(crate) fn file_of(role: Role, node: &Name) -> String {
    format!("{role}-{node}.json")
}

#[cfg(test)]
mod tests;
