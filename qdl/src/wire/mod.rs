//! The ground floor: small types that configuration, control plane and data plane all know, and
//! that know nothing of them.
//!
//! | type | what it is |
//! | --- | --- |
//! | [`MAX_SLOTS`] | slots of a window, bounded by the immediate's layout |
//! | [`MAX_RAILS`] | rails to one peer |
//! | [`IbEnd`] | what one end of a queue pair tells the other |
//! | [`OfiEnd`] | what one end of a libfabric connection tells the other |
//! | [`Score`] | a health score in (0, 1], exact |
//! | [`Policy`], [`RailPolicy`] | how the next sample's connection is chosen |
//! | [`Description`] | the whole of a machine, and the node's configuration |
//! | `DATA_MAGIC`, `is_control_frame` | by which a peer's plane is known |
//! | [`Stream`] | when the tokens of an answer leave the accelerator |

mod description;
mod ib_end;
mod ofi_end;
mod planes;
mod policy;
mod score;
mod stream;

pub use description::{Description, MAX_DESCRIPTION};
pub use ib_end::{IbEnd, IbRegion};
pub use ofi_end::{OfiEnd, OfiForm, OfiRegion};
pub(crate) use planes::{DATA_MAGIC, is_control_frame};
pub use policy::{Policy, RailPolicy};
pub use score::{NotAScore, Score};
pub use stream::Stream;

/// Most slots a window can have.
pub const MAX_SLOTS: usize = 8192;

/// Most rails to one peer.
pub const MAX_RAILS: usize = 256;
