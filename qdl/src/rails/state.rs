//! States of a rail: hysteresis around the latency factor, and fail-back after a loss.
//!
//! ```text
//!                    latency < out_below * usual, for a while
//!       in service ------------------------------------------> congested     (probes alone)
//!           ^  ^  <------------------------------------------     |
//!           |       latency > in_above * usual, for the hold      |
//!           |                                                     v
//!           +--- probation <--- restored --- down <---------- failed, from anywhere
//!              healthy for the hold
//! ```
//!
//! *Usual* is the upper median of the latency factors of the rails that are up. So load on all
//! rails takes no rail out of service, and at most half the rails are congested.

use serde::Serialize;

use super::{Fault, HealthConfig, MS, RailId, Score};

/// State of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RailState {
    /// The rail takes samples.
    InService,
    /// The rail is up but far slower than the others: it takes only probes.
    Congested,
    /// The rail is up again after a loss: it takes only probes until the hold is over.
    Probation,
    /// The rail is lost with this fault, or was never up (`None`).
    Down(Option<Fault>),
}

/// A rail's transition from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The rail.
    pub rail: RailId,
    /// State before the transition.
    pub from: RailState,
    /// State after the transition.
    pub to: RailState,
    /// Latency factor at the transition.
    pub latency: Score,
    /// Time in nanoseconds, on the caller's clock.
    pub at_ns: u64,
}

/// State of one rail, and the conditions for its next transition.
#[derive(Clone, Debug)]
pub(super) struct RailStanding {
    pub state: RailState,
    low_since: Option<u64>,
    congested: Failback,
    failed: Failback,
}

impl RailStanding {
    pub(crate) fn new(health: &HealthConfig) -> Self {
        RailStanding {
            state: RailState::Down(None),
            low_since: None,
            congested: Failback::new(health.congested_hold_ms, health.congested_hold_max_ms),
            failed: Failback::new(health.failed_hold_ms, health.failed_hold_max_ms),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        !matches!(self.state, RailState::Down(_))
    }

    pub(crate) fn fail(&mut self, now: u64, fault: Fault) {
        self.state = RailState::Down(Some(fault));
        self.failed.restart(now);
        self.low_since = None;
    }

    /// Records that the rail is up, for the first time or again.
    pub(crate) fn restore(&mut self, now: u64) {
        if !self.is_up() {
            let trusted = self.failed.hold_ns == 0;
            self.state = if trusted {
                RailState::InService
            } else {
                RailState::Probation
            };
            self.failed.observe(now, true);
        }
    }

    /// Checks the latency factor once per tick. `may_go` is false if too many are congested.
    pub(crate) fn look(
        &mut self,
        now: u64,
        health: &HealthConfig,
        latency: f32,
        usual: f32,
        may_go: bool,
    ) {
        let well = latency >= health.in_above.as_f32() * usual;
        match self.state {
            RailState::Down(_) => {}
            RailState::InService => {
                if latency >= health.out_below.as_f32() * usual {
                    self.low_since = None;
                } else {
                    let since = *self.low_since.get_or_insert(now);
                    if now.saturating_sub(since) >= health.ewma_ms * MS && may_go {
                        self.low_since = None;
                        self.congested.restart(now);
                        self.state = RailState::Congested;
                    }
                }
            }
            RailState::Congested => {
                if self.congested.observe(now, well) {
                    self.state = RailState::InService;
                }
            }
            RailState::Probation => {
                if self.failed.observe(now, well) {
                    self.state = RailState::InService;
                }
            }
        }
    }
}

/// A rail that has been in service for this many hold times starts again with the first hold time.
const FORGIVEN: u64 = 8;

/// Fail-back of one rail: a rail that was out of service must stay healthy for a hold time, which
/// doubles if the rail soon goes out of service again.
#[derive(Clone, Copy, Debug)]
struct Failback {
    hold_min_ns: u64,
    hold_max_ns: u64,
    /// The current hold time in nanoseconds; 0 before the first outage.
    hold_ns: u64,
    healthy_since: Option<u64>,
    back_ns: Option<u64>,
}

impl Failback {
    fn new(min_ms: u64, max_ms: u64) -> Self {
        Failback {
            hold_min_ns: min_ms * MS,
            hold_max_ns: max_ms * MS,
            hold_ns: 0,
            healthy_since: None,
            back_ns: None,
        }
    }

    /// Records that the rail goes out of service, or fails again during the hold time.
    fn restart(&mut self, now: u64) {
        let forgiven = self
            .back_ns
            .is_some_and(|at| now.saturating_sub(at) >= self.hold_ns.saturating_mul(FORGIVEN));
        self.hold_ns = if self.hold_ns == 0 || forgiven {
            self.hold_min_ns
        } else {
            self.hold_ns.saturating_mul(2)
        }
        .min(self.hold_max_ns);
        self.healthy_since = None;
        self.back_ns = None;
    }

    /// Records the rail's health. Returns true once the rail has been healthy for the hold time.
    fn observe(&mut self, now: u64, healthy: bool) -> bool {
        if !healthy {
            self.healthy_since = None;
            return false;
        }
        let since = *self.healthy_since.get_or_insert(now);
        let back = now.saturating_sub(since) >= self.hold_ns;
        if back && self.back_ns.is_none() {
            self.back_ns = Some(now);
        }
        back
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_hold_doubles_and_is_capped_and_forgiven() {
        let mut f = Failback::new(100, 1000);
        let mut now = 0;
        for expected in [100, 200, 400, 800, 1000, 1000].map(|ms| ms * MS) {
            f.restart(now);
            assert_eq!(f.hold_ns, expected);
            assert!(!f.observe(now, true));
            assert!(!f.observe(now + expected - 1, true));
            assert!(f.observe(now + expected, true));
            now += expected + 10;
        }
        now += 8 * 1000 * MS;
        f.restart(now);
        assert_eq!(f.hold_ns, 100 * MS);
    }

    proptest! {
        /// A rail is back only after uninterrupted health for the hold time.
        #[test]
        fn health_must_be_unbroken(
            looks in prop::collection::vec((0u64..60, prop::bool::weighted(0.9)), 1..80),
        ) {
            let mut f = Failback::new(100, 1000);
            f.restart(0);
            let (mut now, mut since) = (0, None);
            for (passed, healthy) in looks {
                now += passed * MS;
                since = if healthy { since.or(Some(now)) } else { None };
                let long = since.is_some_and(|s| now - s >= f.hold_ns);
                prop_assert_eq!(f.observe(now, healthy), long);
            }
        }
    }
}
