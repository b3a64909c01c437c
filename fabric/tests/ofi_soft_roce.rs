//! Tests the `ofi` fabric over `verbs;ofi_rxm` with a kernel driver.
//!
//! Ignored by default: needs two RDMA devices with the addresses 10.9.1.1 and 10.9.1.2. `cargo
//! xtask soft-roce` runs it in the guest, with `ofi_rxm`'s settings for such devices
//! (`docs/ofi.md`, *Known faults of providers*). Without libfabric, a test prints that and passes.
#![cfg(not(feature = "loom"))]

#[macro_use]
mod conformance;

#[path = "ofi/late.rs"]
mod late;
#[path = "ofi/rig.rs"]
mod rig;

use rig::Provider;

const VERBS: Provider = Provider::between("verbs;ofi_rxm", ["10.9.1.1", "10.9.1.2"]);

fabric_conformance!(
    #[ignore = "needs RDMA devices"]
    super::VERBS
);

#[test]
#[ignore = "needs RDMA devices"]
fn nothing_of_a_peer_that_was_given_up_lands_over_verbs() {
    late::a_late_writer(VERBS, 8 << 20, 11);
}
