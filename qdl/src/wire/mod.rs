//! The ground floor: small types that configuration, control plane and data plane all know, and
//! that know nothing of them.
//!
//! | type | what it is |
//! | --- | --- |
//! | [`MAX_RAILS`] | rails to one peer |
//! | [`Score`] | a health score in (0, 1], exact |
//! | [`Policy`], [`RailPolicy`] | how the next sample's connection is chosen |
//! | [`Description`] | the whole of a machine, and the node's configuration |

mod description;
mod policy;
mod score;

pub use description::{Description, MAX_DESCRIPTION};
pub use policy::{Policy, RailPolicy};
pub use score::{NotAScore, Score};

/// Most rails to one peer.
pub const MAX_RAILS: usize = 256;
