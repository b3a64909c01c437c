//! The program `accelerator`, one node of the system under test.
//!
//! * [`node`] builds a node from a configuration and serves; [`check`] describes the node.
//! * `served` formats a session that has ended.
//! * [`entry`] is the program: its command line and its process.

pub mod check;
pub mod entry;
pub mod node;
mod served;
