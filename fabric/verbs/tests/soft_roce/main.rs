//! Tests every verb that this project uses, with the real libibverbs and a kernel driver.
//!
//! Ignored by default: they need two RDMA devices that can reach each other. `cargo xtask
//! soft-roce` runs them in a guest with such a pair. Elsewhere, name two devices in
//! `QDL_RDMA_DEVICES`, such as `rxa,rxb`, and run with `--ignored`. The tests of crate `fabric`
//! cover connections, and faults of cables and peers, on the same devices.
#![allow(clippy::expect_used, clippy::unwrap_used)]

#[macro_use]
mod cases;
#[macro_use]
mod rig;

mod control;
mod data;
mod devices;
mod failure;

use devices::devices;

common_cases!(#[ignore = "needs an RDMA device: cargo xtask soft-roce"]);
