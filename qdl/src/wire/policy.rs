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
    /// By health: the rail with the lowest score that beats the own path (`rails::select`).
    HealthBestFit,
    /// By health: in turn over the rails whose score is near the own path's threshold.
    HealthSpray {
        /// Maximum difference of a rail's score from the threshold, in (0, 1].
        delta: Score,
        /// True to leave out the rails below the threshold.
        #[serde(default)]
        above_only: bool,
    },
}

impl Policy {
    /// Returns the policy's rail policy; `None` for a policy without health.
    /// [`RailArbiter`](crate::rails::RailArbiter) applies policies by health,
    /// [`Arbiter`](crate::rails::Arbiter) the others.
    pub fn by_health(self) -> Option<RailPolicy> {
        match self {
            Policy::RoundRobin | Policy::LeastOutstanding => None,
            Policy::Best => Some(RailPolicy::Best),
            Policy::HealthBestFit => Some(RailPolicy::HealthBestFit),
            Policy::HealthSpray { delta, above_only } => {
                Some(RailPolicy::HealthSpray { delta, above_only })
            }
        }
    }
}

/// Policy for the choice of a rail by health.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RailPolicy {
    /// The path with the highest score.
    Best,
    /// The rail with the lowest score that beats the own path, else the own path. Better rails stay
    /// free for peers that need them.
    HealthBestFit,
    /// In turn over the rails whose score is near the own path's threshold m (`rails::select`).
    HealthSpray {
        /// Maximum difference of a rail's score from m, in (0, 1].
        delta: Score,
        /// True to leave out the rails below m.
        #[serde(default)]
        above_only: bool,
    },
}
