//! The fabric `ofi` over `verbs;ofi_rxm`, on a real kernel driver.
//!
//! Ignored, since it needs two RDMA devices with the addresses 10.9.1.1 and 10.9.1.2, and not yet
//! held up there (`docs/ofi.md`, *Over queue pairs*): in the guest, by hand, as `cargo xtask
//! soft-roce -- BINARY --include-ignored --test-threads=1`. Without libfabric each test says so and
//! passes.
#![cfg(not(qdl_loom))]

#[path = "ofi/late.rs"]
mod late;
#[path = "ofi/rig.rs"]
mod rig;

use rig::Provider;

/// `rxa` and `rxb`.
const VERBS: Provider = Provider::between("verbs;ofi_rxm", ["10.9.1.1", "10.9.1.2"]);

qdl::fabric_conformance!(
    #[ignore = "needs RDMA devices, and is not held up there yet"]
    super::VERBS
);

#[test]
#[ignore = "needs RDMA devices, and is not held up there yet"]
fn nothing_of_a_peer_that_was_given_up_lands_over_verbs() {
    late::a_late_writer(VERBS, 8 << 20, 11);
}
