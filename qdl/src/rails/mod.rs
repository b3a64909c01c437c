//! Chooses the connection for the next sample. The data structures take the time as an argument, do
//! no I/O, and allocate nothing in a decision.
//!
//! A *rail* is a local NIC, a NIC at the peer and the path between them; it carries one or more
//! connections. [`Policy`] has two kinds: `round_robin` and `least_outstanding` use only the
//! connections' load ([`Arbiter`]); `best`, `health_best_fit` and `health_spray` use the health of
//! the rails ([`RailArbiter`]).
//!
//! ```text
//! completions --completed(rail, len, network time)--> Meters --tick--> scores --> ScoredRails ^
//! | issue_query --pick(target, len)------------------------+------ RailPolicy over Ends <+ counts
//! the bytes at once
//! ```
//!
//! | file | items | purpose |
//! | --- | --- | --- |
//! | `arbiter/outstanding` | [`Load`], [`Arbiter`] | policies without health |
//! | `arbiter/by_health` | [`RailArbiter`] | by health: several peers, connections and threads |
//! | `peer` | [`PeerRails`] | policies by health: the rails to one peer |
//! | `select` | [`RailPolicy`] | the three policies by health, from scores alone |
//! | `paths` | `Ends` | the own path, and the threshold m |
//! | `scored` | `ScoredRails` | the rails in service with their scores |
//! | `scores`, `meters` | [`Meter`], [`Meters`], [`Interior`] | scores from times and bytes |
//! | `state` | [`RailState`] | in service, congested, on probation, down |
//! | `failback` | [`Failback`] | hold time of a rail after an outage |
//! | `fault` | [`Fault`], [`Evidence`] | location of the fault: local NIC, path or peer |
//!
//! `cargo xtask bench rails` drives this code in a discrete-event model (`bench/src/rails`).

mod arbiter;
mod failback;
mod fault;
mod meters;
mod paths;
mod peer;
mod scored;
mod scores;
mod select;
mod state;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use crate::wire::{MAX_RAILS, NotAScore, Policy, RailPolicy, Score};
pub use arbiter::{Arbiter, ConnectionRail, Load, RailArbiter, RailArbiterCfgs};
pub use failback::{Failback, FailbackCfgs};
pub use fault::{Evidence, Fault};
pub use meters::Meters;
use paths::{Ends, Path};
pub use peer::{PeerCfgs, PeerRails, RailReport, RailsError, Want};
use scored::ScoredRails;
pub use scores::{Gauge, Interior, Meter, size_class};
use select::Turn;
pub use state::{Change, HealthCfgs, RailState};

/// Number of a rail to a peer, from 0.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct RailId(pub u8);

impl RailId {
    /// Returns the number as an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}
