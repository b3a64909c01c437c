//! Bindings to libibverbs, loaded at run time.
//!
//! A program with this crate links no RDMA library. It starts on a machine without libibverbs, and
//! fails only when it opens a device. The crate has two layers:
//!
//! * [`raw`] - the ABI: structures, constants and a table of functions, named as in libibverbs
//! * [`safe`] - the safe interface: [`Verbs`] -> [`Context`] -> [`Pd`], [`Mr`], [`Cq`], [`Qp`].
//!   Each object keeps its dependencies alive, so none is destroyed while in use
//!
//! `stub` (behind the feature of that name) is an in-process provider: four devices whose queue
//! pairs copy with memcpy. Tests use it, and measurements of the software path without a NIC.
//!
//! # Safety
//!
//! A NIC writes into registered memory at any time, outside of any borrow. So [`Mr`] never returns
//! a Rust reference: it returns addresses, and slices of (address, length, key) for work requests.
//! The owner of the memory guarantees by [`Memory`]'s contract that it stays mapped while it is
//! registered.

pub mod raw;
pub mod safe;
#[cfg(any(test, feature = "stub"))]
pub mod stub;

mod error;

pub use error::{CqError, Error, PostError};
pub use safe::*;
