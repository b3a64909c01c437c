//! Settings of rail health, for the policies by health.

use garde::Validate;
use serde::{Deserialize, Serialize};

use super::rules::{Findings, MAX_MS, within};
use crate::wire::Score;

with_defaults! {
/// Settings of rail health; times in milliseconds. Every key has a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
#[garde(allow_unvalidated)]
pub struct HealthConfig {
    /// Interval between folds of the scores; default 2.
    #[garde(custom(within(1..=MAX_MS)))]
    pub tick_ms: u64 = 2,
    /// Time constant of the EWMAs; default 20.
    #[garde(custom(within(1..=MAX_MS)))]
    pub ewma_ms: u64 = 20,
    /// A rail goes out of service below this fraction of the median latency factor; default 0.3.
    pub out_below: Score = Score::from_steps((3 * 65_536 + 5) / 10),
    /// A rail comes back above this fraction of the median latency factor; default 0.6.
    pub in_above: Score = Score::from_steps((6 * 65_536 + 5) / 10),
    /// Maximum ratio of a rail's baseline to the best rail's baseline, above which the rail counts
    /// as slow; default 4.
    #[garde(custom(within(1..=1_000_000)))]
    pub baseline_spread: u32 = 4,
    /// At most one sample in this many is a probe over a rail that is idle or out of service;
    /// default 128.
    #[garde(custom(within(1..=1_000_000)))]
    pub probe_one_in: u32 = 128,
    /// Minimum interval between probes of a rail; default 50.
    #[garde(custom(within(1..=MAX_MS)))]
    pub probe_every_ms: u64 = 50,
    /// Milliseconds that a congested rail must be healthy to be back in service; default 100.
    /// Each further congestion of the rail doubles the time, up to `congested_hold_max_ms`.
    #[garde(custom(within(1..=MAX_MS)))]
    pub congested_hold_ms: u64 = 100,
    /// Maximum of the doubled `congested_hold_ms`; default 5000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub congested_hold_max_ms: u64 = 5000,
    /// Milliseconds that a rail must be healthy after a loss to be back in service; default 1000.
    /// Each further loss of the rail doubles the time, up to `failed_hold_max_ms`. After 8 hold
    /// times in service, a rail starts again with this value.
    #[garde(custom(within(1..=MAX_MS)))]
    pub failed_hold_ms: u64 = 1000,
    /// Maximum of the doubled `failed_hold_ms`; default 60,000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub failed_hold_max_ms: u64 = 60_000,
}
}

impl HealthConfig {
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
