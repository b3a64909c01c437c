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

pub use domain::Domain;
pub use endpoint::{Completion, Depths, Endpoint, Failed, Outcome, Target, Write};
pub use info::{Info, Place};
pub use library::Ofi;
pub use mr::{Memory, Mr, RemoteRegion};
