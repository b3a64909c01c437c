//! Which devices the tests on a real kernel driver use: this crate's, and those of `qdl`, which
//! include this file.

use std::sync::Arc;

use verbs::Verbs;

/// The library and the names of the two devices.
pub fn devices() -> (Arc<Verbs>, String, String) {
    let names = std::env::var("QDL_RDMA_DEVICES")
        .expect("QDL_RDMA_DEVICES names two devices (cargo xtask soft-roce sets it)");
    let (one, two) = names
        .split_once(',')
        .expect("QDL_RDMA_DEVICES names two devices with a comma between");
    let verbs = Verbs::load().expect("libibverbs");
    (verbs, one.to_owned(), two.to_owned())
}
