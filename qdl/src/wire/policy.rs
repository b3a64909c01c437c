//! Policies that choose the connection of the next sample.

use serde::{Deserialize, Serialize};

use super::Score;

/// Policy for the choice of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Policy {
    /// In turn over all connections.
    RoundRobin,
    /// The connection with the fewest samples in flight; in turn among equals.
    #[default]
    LeastOutstanding,
    /// By health: the path with the highest score.
    Best,
    /// By health: the rail with the lowest score that beats the own path (`rails::select`), else
    /// the own path. Better rails stay free for peers that need them.
    HealthBestFit,
    /// By health: in turn over the rails whose score is near the own path's threshold m.
    HealthSpray {
        /// Maximum difference of a rail's score from m, in (0, 1].
        delta: Score,
        /// True to leave out the rails below m.
        #[serde(default)]
        above_only: bool,
    },
}

impl Policy {
    /// True for a policy by health, which [`RailArbiter`](crate::rails::RailArbiter) applies;
    /// [`Arbiter`](crate::rails::Arbiter) applies the others.
    pub fn is_by_health(self) -> bool {
        !matches!(self, Policy::RoundRobin | Policy::LeastOutstanding)
    }
}
