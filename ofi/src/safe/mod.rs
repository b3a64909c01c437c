//! The safe layer.
//!
//! | object | what it is |
//! | --- | --- |
//! | [`Ofi`] | the library |
//! | [`Info`] | one way to use one NIC, as a provider offers it, with its limits |
//! | [`Domain`] | the NIC, opened |
//! | [`Mr`] | memory that operations may read from |
//! | [`Endpoint`] | an endpoint with its completion queue, its peer, and windows the peer writes |

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
