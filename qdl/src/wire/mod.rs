//! Small types that configuration, control plane and data plane share. It depends on none of them.
//!
//! | type | purpose |
//! | --- | --- |
//! | [`MAX_RAILS`] | rails to one peer |
//! | [`Score`] | a health score in (0, 1], exact |
//! | [`Standing`] | whether an engine takes samples |
//! | [`Policy`] | how the next sample's connection is chosen |
//! | [`Description`] | description of a machine, and the node's configuration |

mod description;
mod policy;
mod score;
mod standing;

pub use description::Description;
#[cfg(test)]
pub(crate) use description::MAX_DESCRIPTION;
pub use policy::Policy;
pub use score::{NotAScore, Score};
pub use standing::Standing;

/// Maximum number of rails to one peer.
pub const MAX_RAILS: usize = 256;
