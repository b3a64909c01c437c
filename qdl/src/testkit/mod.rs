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

use std::time::{Duration, Instant};

pub use fabric::testkit::assert_has;

use crate::config::{IbKeys, NicConfig, NicFabric};

/// Returns the keys of an RDMA device's entry; panics for another fabric.
#[track_caller]
pub fn ib_keys(nic: &mut NicConfig) -> &mut IbKeys {
    match &mut nic.fabric {
        NicFabric::Ib(ib) => ib,
        other => panic!("a NIC of the fabric {}", other.as_str()),
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime")
}

/// Waits until `holds`; panics with `what` after five minutes.
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    eventually_or(|| what.to_owned(), holds);
}

/// Like [`eventually`], with a text that is created only on failure.
#[track_caller]
pub fn eventually_or(what: impl Fn() -> String, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(300), "in vain: {}", what());
        if waited < Duration::from_millis(2) {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
