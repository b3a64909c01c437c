//! The safe layer over the raw ABI.
//!
//! | object | purpose |
//! | --- | --- |
//! | [`Ofi`] | the library |
//! | [`Info`] | one way to use a NIC, as a provider offers it, with its limits |
//! | [`Domain`] | an opened NIC |
//! | [`Mr`] | source memory of writes |
//! | [`Endpoint`] | an endpoint with its completion queue, its peer, and the peer's windows |

mod domain;
mod endpoint;
mod info;
mod library;
mod mr;
mod queue;

pub use domain::Domain;
pub use endpoint::{Depths, Endpoint, Target, Write};
pub use info::{Info, Limits, Place};
pub use library::Ofi;
pub use mr::{Memory, Mr, RemoteRegion};
pub use queue::{Completion, Failed, Outcome};
