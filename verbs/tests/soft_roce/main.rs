//! Every verb that this project uses, on the real libibverbs and a real kernel driver.
//!
//! Runs when `QDL_RDMA_DEVICES` names two devices that can reach each other, such as `rxa,rxb`, and skips otherwise. The
//! guest of `cargo xtask soft-roce` sets it. Run with `--test-threads=1`: one test takes the link down.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod control;
mod data;
mod failure;
mod rig;
