//! Many rails: their health, the paths over them, which one takes the next sample, and when one that was
//! out may come back.
//!
//! ```text
//!   rail threads --completed(rail, len, network time)--> Meters --tick--> scores --> OrderedRails
//!                                                           ^                            |
//!   issue thread --pick(source, target, len)----------------+---- RailPolicy over Ends <-+
//!                      counts the bytes at once
//! ```
//!
//! | file | purpose |
//! | --- | --- |
//! | [`Score`] | a fraction in (0, 1], exact |
//! | [`OrderedRails`] | the rails in service, sorted by score |
//! | [`Ends`], [`Path`] | direct, rd, dr and drd, and the number m that divides the rails |
//! | [`RailPolicy`] | `best`, `health_best_fit`, `health_spray` |
//! | [`compare`] | rail-only or a spine |
//! | [`Meter`], [`Interior`] | from network times and bytes assigned to scores |
//! | [`Failback`] | how long a rail is held back |
//! | [`Fault`], [`Evidence`] | local NIC, path or peer |
//! | [`PeerRails`] | all of it for the rails to one peer: what a frontend asks for every sample |
//! | [`RailArbiter`] | the same in terms of lanes, for several peers and threads |
//! | [`sim`] | a discrete-event model that drives the very same code with a clock of its own |
//!
//! Nothing here does I/O or reads a clock, and no decision allocates.

mod design;
mod failback;
mod fault;
mod lanes;
mod meters;
mod ordered;
mod paths;
mod peer;
mod scores;
mod select;
pub mod sim;
mod state;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use crate::wire::{NotAScore, RailPolicy, Score};
pub use design::{Comparison, Design, compare};
pub use failback::{Failback, FailbackCfgs};
pub use fault::{Evidence, Fault};
pub use lanes::{LaneRail, RailArbiter, RailArbiterCfgs};
pub use meters::Meters;
pub use ordered::{OrderedRails, Window};
pub use paths::{Ends, Path, PathKind, PathScore, h_ratio};
pub use peer::{Choice, PeerCfgs, PeerRails, RailReport, RailsError, Want};
pub use scores::{EWMA_NS, Gauge, Interior, Meter, size_class};
pub use select::{Turn, best, best_fit, spray};
pub use state::{Change, HealthCfgs, RailState};

/// Most rails to one peer.
pub const MAX_RAILS: usize = 256;

/// Number of a rail to a peer, from 0.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct RailId(pub u8);

impl RailId {
    /// As an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}
