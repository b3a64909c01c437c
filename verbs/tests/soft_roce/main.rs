//! Every verb that this project uses, on the real libibverbs and a real kernel driver.
//!
//! Runs when `QDL_RDMA_DEVICES` names two devices that can reach each other, such as `rxa,rxb`, and skips otherwise. The
//! guest of `cargo xtask soft-roce` sets it. Run with `--test-threads=1`: one test takes the link down.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod cable;
mod control;
mod data;
mod devices;
mod failure;
mod rig;

use devices::devices;

#[test]
fn a_real_device_has_its_folder_in_sysfs() {
    let Some((verbs, one, _)) = devices() else {
        return;
    };
    let context = verbs.open(&one).expect("the device");
    assert!(
        context.info().sysfs.join("ports/1").is_dir(),
        "{:?}",
        context.info()
    );
}
