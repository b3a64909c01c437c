//! States of a rail: hysteresis around its score, and recovery after a loss.
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
//! rails takes none out of service, and at most half the rails are congested.

use serde::{Deserialize, Serialize};

use super::{Failback, FailbackCfgs, Fault, RailId, Score, scores::EWMA_NS};

/// Settings of the health policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthCfgs {
    /// Interval between folds of the scores, in nanoseconds; default 2 ms.
    pub tick_ns: u64,
    /// Time constant of the EWMAs, in nanoseconds; default 20 ms.
    pub ewma_ns: u64,
    /// Below this fraction of the usual latency factor a rail goes out of service; default 0.3.
    pub out_below: Score,
    /// Above this fraction the rail comes back; default 0.6.
    pub in_above: Score,
    /// Maximum ratio of a rail's baseline to the best rail's; beyond it the score is reduced in
    /// proportion, because the rail was slow from the start. Default 4.
    pub baseline_spread: u32,
    /// At most one sample in so many is a probe over a rail that is idle or out of service. Default
    /// 128, under 1 %, so that probes do not determine the 99th percentile.
    pub probe_one_in: u32,
    /// Minimum interval between probes of a rail, in nanoseconds; default 50 ms.
    pub probe_every_ns: u64,
    /// Hold times after congestion; default 100 ms to 5 s.
    pub congested: FailbackCfgs,
    /// Hold times after a loss; default 1 s to 60 s.
    pub failed: FailbackCfgs,
}

impl Default for HealthCfgs {
    fn default() -> Self {
        const MS: u64 = 1_000_000;
        HealthCfgs {
            tick_ns: 2 * MS,
            ewma_ns: EWMA_NS,
            out_below: Score::from_steps((65536 * 3 + 5) / 10),
            in_above: Score::from_steps((65536 * 6 + 5) / 10),
            baseline_spread: 4,
            probe_one_in: 128,
            probe_every_ns: 50 * MS,
            congested: FailbackCfgs {
                first_ns: 100 * MS,
                most_ns: 5_000 * MS,
            },
            failed: FailbackCfgs {
                first_ns: 1_000 * MS,
                most_ns: 60_000 * MS,
            },
        }
    }
}

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
    /// The rail is lost, or was never up (no fault).
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
pub(super) struct Standing {
    pub state: RailState,
    low_since: Option<u64>,
    congested: Failback,
    failed: Failback,
}

impl Standing {
    pub fn new(cfgs: &HealthCfgs) -> Self {
        Standing {
            state: RailState::Down(None),
            low_since: None,
            congested: Failback::new(cfgs.congested),
            failed: Failback::new(cfgs.failed),
        }
    }

    pub fn is_up(&self) -> bool {
        !matches!(self.state, RailState::Down(_))
    }

    pub fn fail(&mut self, now: u64, fault: Fault) {
        self.state = RailState::Down(Some(fault));
        self.failed.out(now);
        self.low_since = None;
    }

    /// Records that the rail is up, for the first time or again.
    pub fn restore(&mut self, now: u64) {
        if !self.is_up() {
            let trusted = self.failed.hold_ns() == 0;
            self.state = if trusted {
                RailState::InService
            } else {
                RailState::Probation
            };
            self.failed.looks(now, true);
        }
    }

    /// Checks the latency factor once per tick. `may_go` is false if too many rails are out of
    /// service.
    pub fn look(&mut self, now: u64, cfgs: &HealthCfgs, latency: f32, usual: f32, may_go: bool) {
        let well = latency >= cfgs.in_above.as_f32() * usual;
        match self.state {
            RailState::Down(_) => {}
            RailState::InService => {
                if latency >= cfgs.out_below.as_f32() * usual {
                    self.low_since = None;
                } else {
                    let since = *self.low_since.get_or_insert(now);
                    if now.saturating_sub(since) >= cfgs.ewma_ns && may_go {
                        self.low_since = None;
                        self.congested.out(now);
                        self.state = RailState::Congested;
                    }
                }
            }
            RailState::Congested => {
                if self.congested.looks(now, well) {
                    self.state = RailState::InService;
                }
            }
            RailState::Probation => {
                if self.failed.looks(now, well) {
                    self.state = RailState::InService;
                }
            }
        }
    }
}
