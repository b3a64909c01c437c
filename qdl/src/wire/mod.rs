//! Small types that configuration, control plane and data plane share, without dependencies on
//! them.
//!
//! | type | purpose |
//! | --- | --- |
//! | [`MAX_RAILS`] | maximum number of rails to one peer |
//! | [`Score`] | an exact health score in (0, 1] |
//! | [`Policy`], [`RailPolicy`] | choice of the next sample's connection |
//! | [`EngineInfo`] | an accelerator's description of its engine |
//! | [`Content`] | identity of the engine's content: a file, settings, a server's model |
//! | [`NodeFacts`] | facts of a node and its machine |
//! | [`Description`] | full description of a machine, with the node's configuration |

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

/// Maximum number of rails to one peer.
pub const MAX_RAILS: usize = 256;
