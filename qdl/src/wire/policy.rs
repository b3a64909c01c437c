//! How the connection of the next sample is chosen.

use serde::{Deserialize, Serialize};

use super::Score;

/// How to choose a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Policy {
    /// Each in turn.
    RoundRobin,
    /// The one with the fewest samples in flight; in turn among equals.
    #[default]
    LeastOutstanding,
    /// By health: the path with the highest score.
    Best,
    /// By health: the rail with the lowest score that still beats the own rails.
    HealthBestFit,
    /// By health: in turn over the rails about as good as the own ones.
    HealthSpray {
        /// How far from the own rails' score a rail's may be, in (0, 1].
        delta: Score,
        /// Leaves out the rails below it.
        #[serde(default)]
        above_only: bool,
    },
}

impl Policy {
    /// The policy by health, where it is one: such a choice is
    /// [`RailArbiter`](crate::rails::RailArbiter)'s, not [`Arbiter`](crate::rails::Arbiter)'s.
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

/// How to choose a rail by health.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RailPolicy {
    /// The path with the highest score.
    Best,
    /// The rail with the lowest score that still beats the own rails; they themselves when none
    /// does. Better rails stay free for those who need them.
    HealthBestFit,
    /// In turn over the rails about as good as the own ones.
    HealthSpray {
        /// How far from m a rail's score may be, in (0, 1].
        delta: Score,
        /// Leaves out the rails below m.
        #[serde(default)]
        above_only: bool,
    },
}
