//! Which devices the tests on a real kernel driver use: this crate's, and those of `qdl`, which include this file.

use std::sync::Arc;

use verbs::Verbs;

/// The library and the names of the two devices, or why the tests do not run.
pub fn devices() -> Option<(Arc<Verbs>, String, String)> {
    let Ok(names) = std::env::var("QDL_RDMA_DEVICES") else {
        println!("skipped: QDL_RDMA_DEVICES is not set (cargo xtask soft-roce sets it)");
        return None;
    };
    let (one, two) = names
        .split_once(',')
        .expect("QDL_RDMA_DEVICES names two devices with a comma between");
    let verbs = Verbs::load().expect("libibverbs");
    Some((verbs, one.to_owned(), two.to_owned()))
}
