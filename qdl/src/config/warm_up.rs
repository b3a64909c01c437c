//! What connections do before LoadGen's clock.

use garde::Validate;
use serde::Deserialize;

use super::rules::{MAX_MS, within};

/// How connections are warmed up, once LoadGen has loaded its samples and before it issues the
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
pub struct WarmUpConfig {
    /// What may be left out is left out after so long: everything but one sample over every
    /// connection. 0: connections begin the run cold. Default 1000.
    #[garde(custom(within(0..=MAX_MS)))]
    pub budget_ms: u64,
    /// A connection that leaves its sample unanswered for so long, while no other has an answer
    /// either, ends the run; default 10,000.
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
    /// Are connections warmed up at all?
    pub fn is_on(&self) -> bool {
        self.budget_ms > 0
    }

    durations! {
        budget from_millis budget_ms;
        deadline from_millis deadline_ms;
    }
}
