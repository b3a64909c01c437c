//! Which connection takes the next sample. Data structures with the clock passed in: nothing here
//! does I/O, and no decision allocates.
//!
//! A *rail* is a NIC here, a NIC at the peer and the way between; one or more connections lie on
//! it. Two kinds of policy choose ([`Policy`]): `round_robin` and `least_outstanding` look at the
//! connections alone ([`Arbiter`]); `best`, `health_best_fit` and `health_spray` look at the health
//! of the rails ([`RailArbiter`]).
//!
//! ```text
//!   completions --completed(rail, len, network time)--> Meters --tick--> scores --> ScoredRails
//!                                                          ^                             |
//!   issue_query --pick(target, len)------------------------+------ RailPolicy over Ends <+
//!                    counts the bytes at once
//! ```
//!
//! | file | what is in it | what for |
//! | --- | --- | --- |
//! | `arbiter/outstanding` | [`Load`], [`Arbiter`] | the policies without health |
//! | `arbiter/by_health` | [`RailArbiter`] | by health: several peers, connections and threads |
//! | `peer` | [`PeerRails`] | by health: the rails to one peer |
//! | `select` | [`RailPolicy`] | the three policies by health, over scores alone |
//! | `paths` | `Ends` | the own path, and the number m that divides the rails |
//! | `scored` | `ScoredRails` | the rails in service with their scores |
//! | `scores`, `meters` | [`Meter`], [`Meters`], [`Interior`] | from times and bytes to scores |
//! | `state` | [`RailState`] | in service, congested, on probation, down |
//! | `failback` | [`Failback`] | how long a rail is held back |
//! | `fault` | [`Fault`], [`Evidence`] | whose fault a lost rail is: local NIC, path or peer |
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
    /// As an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}
