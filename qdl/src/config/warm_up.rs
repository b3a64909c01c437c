//! Warm-up of connections before LoadGen's clock starts.

use garde::Validate;
use serde::Deserialize;

use super::rules::{MAX_MS, within};

/// Settings of the warm-up, which runs after LoadGen loads its samples and before it issues the
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
pub struct WarmUpConfig {
    /// Time budget in milliseconds. After it the warm-up sends only the mandatory sample over each
    /// connection. 0: connections begin the run cold. Default 1000.
    #[garde(custom(within(0..=MAX_MS)))]
    pub budget_ms: u64,
    /// Deadline in milliseconds of a connection's sample: without an answer on any connection for
    /// this long, the run ends; default 10,000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub deadline_ms: u64,
}

impl Default for WarmUpConfig {
    fn default() -> Self {
        WarmUpConfig {
            budget_ms: 1000,
            deadline_ms: 10_000,
        }
    }
}

impl WarmUpConfig {
    /// Returns whether connections are warmed up.
    pub fn is_on(&self) -> bool {
        self.budget_ms > 0
    }

    durations! {
        budget from_millis budget_ms;
        deadline from_millis deadline_ms;
    }
}
