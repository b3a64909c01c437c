//! Is a rail in service? Hysteresis around its score, and what a lost rail goes through.
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
//! *Usual* is the upper median of the latency factors of the rails that carry samples, so that
//! load, which all rails feel, takes none of them out, and at most half the rails are ever
//! congested.

use serde::{Deserialize, Serialize};

use super::{Failback, FailbackCfgs, Fault, RailId, Score, scores::EWMA_NS};

/// How health is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthCfgs {
    /// Scores are folded so often, in nanoseconds; default 2 ms.
    pub tick_ns: u64,
    /// Time constant of the averages, in nanoseconds; default 20 ms.
    pub ewma_ns: u64,
    /// A rail falls out of service below this fraction of the usual latency factor; default 0.3.
    pub out_below: Score,
    /// It comes back above this fraction; default 0.6.
    pub in_above: Score,
    /// A rail whose baseline is more than this many times the best rail's is scored as if it were
    /// in excess: it was slow before anybody looked. Default 4.
    pub baseline_spread: u32,
    /// At most one sample in so many goes as a probe over a rail that is idle or out of service;
    /// default 128, under 1 %, so that no 99th percentile is made of probes.
    pub probe_one_in: u32,
    /// A rail is probed no more often than this, in nanoseconds; default 50 ms.
    pub probe_every_ns: u64,
    /// How long a rail that was congested is held back; default 100 ms to 5 s.
    pub congested: FailbackCfgs,
    /// How long a rail that was lost is held back; default 1 s to 60 s.
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

/// Where a rail stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RailState {
    /// Takes samples.
    InService,
    /// Up, but far slower than the others: takes probes.
    Congested,
    /// Up again after it was lost: takes probes until it is trusted.
    Probation,
    /// Lost, or not made yet (no fault).
    Down(Option<Fault>),
}

/// A rail went from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Which.
    pub rail: RailId,
    /// Where it stood.
    pub from: RailState,
    /// Where it stands.
    pub to: RailState,
    /// Its latency factor at that time.
    pub latency: Score,
    /// When, in nanoseconds on the caller's clock.
    pub at_ns: u64,
}

/// State of one rail and what leads to the next.
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

    /// The rail is up again, or for the first time.
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

    /// Looks at the latency factor once a tick. `may_go` is false when too many rails are out
    /// already.
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
