//! Choice of the connection for the next sample. The data structures receive the clock's reading as
//! an argument, do no I/O, and allocate nothing in a decision.
//!
//! A *rail* is a local NIC, a NIC at the peer and the path between them; it carries one or more
//! connections. [`Policy`] has two kinds: `round_robin` and `least_outstanding` use only the
//! connections' load ([`Arbiter`]); `best`, `health_best_fit` and `health_spray` use the health of
//! the rails ([`RailArbiter`]).
//!
//! ```text
//! completions --complete(len, network time)--> Meter --tick--> scores --> ScoredRails
//!                                               ^                             |
//!                          the bytes at once    |                             v
//! issue_query --pick(target, len)---------------+--------------- Policy over Ends
//! ```
//!
//! | file | items | purpose |
//! | --- | --- | --- |
//! | `outstanding` | [`Load`], [`Arbiter`] | policies without health |
//! | `by_health` | [`RailArbiter`] | by health: several peers, connections and threads |
//! | `peer` | `PeerRails` | by health: the rails to one peer |
//! | `select` | `Ends`, `ScoredRails` | the three policies by health, from scores alone |
//! | `scores` | `Meter`, [`Interior`] | scores from times and bytes |
//! | `state` | [`RailState`] | in service, congested, on probation, down; hold times |
//! | `fault` | [`Fault`], `Evidence` | location of a fault: local NIC, path or peer |

mod by_health;
mod fault;
mod outstanding;
mod peer;
mod scores;
mod select;
mod state;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use crate::wire::{MAX_RAILS, Policy, Score};
pub use by_health::{ConnectionRail, RailArbiter};
pub(crate) use fault::Fault;
pub(crate) use outstanding::Arbiter;
pub use outstanding::Load;
pub use peer::PeerCfgs;
pub(crate) use peer::RailReport;
pub use scores::{Interior, size_class};
pub(crate) use state::{Change, RailState};

use crate::config::HealthConfig;
use fault::Evidence;
use scores::Meter;

const MS: u64 = 1_000_000;

/// Number of a rail to a peer, from 0.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct RailId(pub u8);

impl RailId {
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}
