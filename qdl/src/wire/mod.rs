//! The ground floor: small types that configuration, control plane and data plane all know, and
//! that know nothing of them.
//!
//! | type | what it is |
//! | --- | --- |
//! | [`MAX_RAILS`] | rails to one peer |
//! | [`Score`] | a health score in (0, 1], exact |
//! | [`Policy`], [`RailPolicy`] | how the next sample's connection is chosen |
//! | [`EngineInfo`] | what an accelerator says of its engine |
//! | [`Content`] | what that engine really runs: a file, settings, a server's model |
//! | [`NodeFacts`] | what a node says of itself and its machine |
//! | [`Description`] | the whole of a machine, and the node's configuration |

mod content;
mod description;
mod engine;
mod facts;
mod policy;
mod score;

pub use content::{Content, MAX_CONTENT_NAME};
pub use description::{Description, MAX_DESCRIPTION};
pub use engine::{CacheState, EngineInfo, MAX_CACHE_WORDS, MAX_ENGINE_NAME, PrefixCache};
pub use facts::{LinkFact, LinkLayer, MAX_HOST, MachineIds, NodeFacts};
pub use policy::{Policy, RailPolicy};
pub use score::{NotAScore, Score};

/// Most rails to one peer.
pub const MAX_RAILS: usize = 256;
