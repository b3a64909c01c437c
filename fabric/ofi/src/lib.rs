//! Safe bindings to libfabric, loaded at run time.
//!
//! The library is not linked: a program with this crate starts on a machine without libfabric, and
//! fails only when it requests a provider. It uses the system's library, because a second copy in
//! one process can take a device from the first. Two separate layers:
//!
//! * [`raw`] - the ABI: structures, constants, a table of functions, in libfabric's own names
//! * [`safe`] - the interface for the project: [`Ofi`] -> [`Info`] -> [`Domain`] -> [`Mr`],
//!   [`Endpoint`]. Each object keeps its dependencies alive, so no object is closed while in use
//!
//! # Safety
//!
//! A provider writes into a window at any time, outside any borrow, and reads a source until its
//! completion. So this crate makes no Rust reference to registered memory: the owner guarantees
//! ([`Memory`]'s contract) that it stays mapped while an object holds it. An [`Endpoint`] holds all
//! memory of its operations until it is closed. The provider may access the memory until then:
//! closing a region alone does not stop a started write (measured with `tcp`: `docs/ofi.md`).

pub mod raw;
pub mod safe;

mod error;

pub use error::{Error, OpError};
pub use safe::*;
