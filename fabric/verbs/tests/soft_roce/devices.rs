//! Devices for the tests with a kernel driver: those of this crate, and those of `fabric`, which
//! include this file.

use std::sync::Arc;

use verbs::Verbs;

/// libibverbs and the names of both devices.
pub fn devices() -> (Arc<Verbs>, String, String) {
    let names = std::env::var("QDL_RDMA_DEVICES")
        .expect("QDL_RDMA_DEVICES names two devices (cargo xtask soft-roce sets it)");
    let (one, two) = names
        .split_once(',')
        .expect("QDL_RDMA_DEVICES names two devices with a comma between");
    let verbs = Verbs::load().expect("libibverbs");
    (verbs, one.to_owned(), two.to_owned())
}
