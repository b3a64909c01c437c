//! Every verb that this project uses, on the real libibverbs and a real kernel driver.
//!
//! Ignored, since they need two RDMA devices that can reach each other: `cargo xtask soft-roce`
//! runs them in a guest that has a pair. Elsewhere name two devices in `QDL_RDMA_DEVICES`, such as
//! `rxa,rxb`, and run with `--ignored`. What crosses in each way that a connection uses, and faults
//! of cables and peers, are tested by the suite of `qdl`'s fabric on the same devices.
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
