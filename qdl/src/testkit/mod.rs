//! What tests stand on in place of hardware, and the suite that every fabric is put through. Behind
//! the feature `testkit`, so that no program carries it.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`conformance`] | the fabric contract as tests, for any fabric |
//! | [`memory`] | a fabric inside the process, which can be cut |
//! | [`machine`] | sysfs trees of machines: a DGX, a P5, two sockets, a laptop |
//! | [`device_memory`] | a GPU's memory without a GPU |
//!
//! RDMA devices without a NIC are `verbs`' own: its feature `stub`.

pub mod conformance;
pub mod device_memory;
pub mod machine;
pub mod memory;

use crate::config::{IbKeys, NicConfig, NicFabric};

/// The keys of an RDMA device's entry; panics for another fabric.
#[track_caller]
pub fn ib_keys(nic: &mut NicConfig) -> &mut IbKeys {
    match &mut nic.fabric {
        NicFabric::Ib(ib) => ib,
        other => panic!("a NIC of the fabric {}", other.as_str()),
    }
}

/// Panics with `text` if it lacks one of `words`.
#[track_caller]
pub fn assert_has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no `{word}` in {text}");
    }
}
