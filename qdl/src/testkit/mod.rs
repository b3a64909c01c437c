//! Substitutes for hardware in tests. The feature `testkit` keeps them out of programs.
//!
//! | module | content |
//! | --- | --- |
//! | [`config`] | texts of configurations, and what loading them says |
//! | [`fuzz`] | entry functions of the fuzz targets |
//! | [`lingers`] | a link with a long goodbye |
//! | [`machine`] | sysfs trees of machines: a DGX, a P5, two sockets, a laptop |
//! | [`peer`] | a frontend made of plain bytes |
//! | [`rig`] | a dispatcher and a server in one process, and links between them |
//!
//! `verbs` simulates RDMA devices without a NIC: its feature `stub`.

#![allow(missing_docs, reason = "the names of test helpers say enough")]

pub mod config;
pub mod fuzz;
pub mod lingers;
pub mod machine;
pub mod peer;
pub mod rig;

pub use fabric::testkit::{assert_has, eventually, eventually_or};

use crate::config::{IbKeys, NicConfig, NicFabric};

/// Returns the keys of an RDMA device's entry; panics for another fabric.
#[track_caller]
pub fn ib_keys(nic: &mut NicConfig) -> &mut IbKeys {
    match &mut nic.fabric {
        NicFabric::Ib(ib) => ib,
        other => panic!("{other:?}"),
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime")
}
