//! libibverbs, found at run time.
//!
//! Nothing is linked: a program with this crate starts on a machine that has no RDMA library, and
//! says so only when a device is asked for. Two layers, kept apart:
//!
//! * [`raw`] - the ABI: structures, constants, a table of functions, in libibverbs' own names
//! * [`safe`] - what the rest of the project uses: [`Verbs`] -> [`Context`] -> [`Pd`], [`Mr`],
//!   [`Cq`], [`Qp`]. Each object keeps alive what it stands on, so nothing can be destroyed under
//!   its user
//!
//! `stub` (behind the feature of that name) is a provider inside the process: two devices whose
//! queue pairs reach each other by memcpy, for tests and for the cost of the software path without
//! a NIC.
//!
//! # What is safe here, and what is promised by whom
//!
//! A NIC writes into registered memory whenever the peer pleases, outside of any borrow. So a
//! region never hands out a Rust reference: [`Mr`] gives addresses, copies, and slices as (address,
//! length, key) for work requests, and the owner of the memory promises ([`Memory`]'s contract)
//! that it stays mapped for as long as it is registered.

pub mod raw;
pub mod safe;
#[cfg(any(test, feature = "stub"))]
pub mod stub;

mod error;

pub use error::{CqError, Error, PostError};
pub use safe::*;
