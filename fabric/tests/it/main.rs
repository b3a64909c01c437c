//! The conformance suite over each fabric, and the counters and faults of each.
#![cfg(not(feature = "loom"))]

#[macro_use]
mod conformance;

mod ib;
mod loopback;
mod ofi;
