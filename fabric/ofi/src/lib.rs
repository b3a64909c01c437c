//! Safe bindings to libfabric, loaded at run time.
//!
//! The library is not linked: a program with this crate starts on a machine without libfabric, and
//! fails only when it requests a provider. The crate uses the system's library, because a second
//! copy in one process can take a device from the first.
//!
//! | object | purpose |
//! | --- | --- |
//! | [`Ofi`] | the library |
//! | [`Info`] | one way to use a NIC, as a provider offers it, with its limits |
//! | [`Domain`] | an opened NIC |
//! | [`Mr`] | source memory of writes |
//! | [`Endpoint`] | an endpoint with its completion queue, its peer, and the peer's windows |
//!
//! Each object keeps its dependencies alive, so no object is closed while in use. Below is `raw`,
//! the ABI: structures, constants, a table of functions, in libfabric's own names.
//!
//! # Safety
//!
//! A provider writes into a window at any time, outside any borrow, and reads a source until its
//! completion. So this crate makes no Rust reference to registered memory: the caller of
//! [`Memory::new`] guarantees that it stays mapped while its owner lives. An [`Endpoint`] holds all
//! memory of its operations until it is closed. The provider may access the memory until then:
//! closing a region alone does not stop a started write (measured with `tcp`: `docs/ofi.md`).

#[macro_use]
#[path = "../../abi.rs"]
mod abi;
mod domain;
mod endpoint;
mod error;
mod library;
mod mr;
pub mod raw;

pub use domain::Domain;
pub use endpoint::{Completion, Depths, Endpoint, Failed, Outcome, Write};
pub use error::{Error, OpError};
pub use library::{Info, Limits, NicAddress, Ofi};
pub use mr::{Memory, Mr, RemoteRegion};
