//! How the health of rails is judged, under a policy by health.

use garde::Validate;
use serde::Deserialize;

use super::rules::{Findings, MAX_MS, within};
use crate::wire::Score;

/// How the health of rails is judged; times in milliseconds. Every key has a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
#[garde(allow_unvalidated)]
pub struct HealthConfig {
    /// Scores are folded so often; default 2.
    #[garde(custom(within(1..=MAX_MS)))]
    pub tick_ms: u64,
    /// Time constant of the averages; default 20.
    #[garde(custom(within(1..=MAX_MS)))]
    pub ewma_ms: u64,
    /// A rail falls out of service below this fraction of the usual latency factor; default 0.3.
    pub out_below: Score,
    /// It comes back above this fraction; default 0.6.
    pub in_above: Score,
    /// A rail whose baseline is more than this many times the best rail's counts as slow;
    /// default 4.
    #[garde(custom(within(1..=1_000_000)))]
    pub baseline_spread: u32,
    /// At most one sample in so many goes as a probe over a rail that is idle or out of service;
    /// default 128.
    #[garde(custom(within(1..=1_000_000)))]
    pub probe_one_in: u32,
    /// A rail is probed no more often than this; default 50.
    #[garde(custom(within(1..=MAX_MS)))]
    pub probe_every_ms: u64,
    /// How long a rail that was congested must look healthy before it is back; default 100.
    /// Doubles each time.
    #[garde(custom(within(1..=MAX_MS)))]
    pub congested_hold_ms: u64,
    /// The most that comes to; default 5000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub congested_hold_max_ms: u64,
    /// How long a rail that was lost must look healthy before it is back; default 1000.
    /// Doubles each time.
    #[garde(custom(within(1..=MAX_MS)))]
    pub failed_hold_ms: u64,
    /// The most that comes to; default 60,000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub failed_hold_max_ms: u64,
}

impl Default for HealthConfig {
    fn default() -> Self {
        let fraction = |tenths: u32| Score::from_steps((65_536 * tenths + 5) / 10);
        HealthConfig {
            tick_ms: 2,
            ewma_ms: 20,
            out_below: fraction(3),
            in_above: fraction(6),
            baseline_spread: 4,
            probe_one_in: 128,
            probe_every_ms: 50,
            congested_hold_ms: 100,
            congested_hold_max_ms: 5000,
            failed_hold_ms: 1000,
            failed_hold_max_ms: 60_000,
        }
    }
}

impl HealthConfig {
    /// How its keys go together.
    pub(super) fn check(&self, out: &mut Findings<'_>) {
        if self.out_below >= self.in_above {
            out.add(
                "health.out_below",
                format!(
                    "out_below is {}, no less than in_above, {}",
                    self.out_below, self.in_above
                ),
                "set it lower: a rail would go out and come back on the same score",
            );
        }
        for (key, first, most) in [
            (
                "congested_hold_max_ms",
                self.congested_hold_ms,
                self.congested_hold_max_ms,
            ),
            (
                "failed_hold_max_ms",
                self.failed_hold_ms,
                self.failed_hold_max_ms,
            ),
        ] {
            if first > most {
                out.add(
                    format!("health.{key}"),
                    format!("{key} is {most}, less than the first hold, {first}"),
                    format!("set it to {first} or more"),
                );
            }
        }
    }
}
