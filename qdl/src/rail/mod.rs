//! The rail thread: one for each NIC entry of a node's configuration, polling the connections of that
//! NIC. Frontend and accelerator run the same loop ([`thread`]) over different work.
//!
//! [`echo`] decides, with the clock passed in, when a quiet connection is asked for a sign of life and when
//! it is given up; [`spin`] how a thread waits that finds nothing.

pub mod echo;
pub mod spin;
pub mod thread;

pub use echo::{Echo, EchoAction, EchoCfgs};
pub use spin::{Spin, Wait};
pub(crate) use thread::{ENDING, arm_all, join_all};
pub use thread::{Placed, RailCfgs, RailHandle, RailWork, Turn, spawn};
