//! The fabric `ofi` over `verbs;ofi_rxm`, on a real kernel driver.
//!
//! Ignored, since it needs two RDMA devices with the addresses 10.9.1.1 and 10.9.1.2: `cargo xtask
//! soft-roce` runs it in the guest, with the settings of `ofi_rxm` that such devices need
//! (`docs/ofi.md`, *Over queue pairs*). Without libfabric each test says so and passes.
#![cfg(not(qdl_loom))]

#[path = "ofi/late.rs"]
mod late;
#[path = "ofi/rig.rs"]
mod rig;

use rig::Provider;

/// `rxa` and `rxb`.
const VERBS: Provider = Provider::between("verbs;ofi_rxm", ["10.9.1.1", "10.9.1.2"]);

fabric::fabric_conformance!(
    #[ignore = "needs RDMA devices"]
    super::VERBS
);

#[test]
#[ignore = "needs RDMA devices"]
fn nothing_of_a_peer_that_was_given_up_lands_over_verbs() {
    late::a_late_writer(VERBS, 8 << 20, 11);
}
