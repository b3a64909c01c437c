//! Chooses the rail to one peer for each sample.
//!
//! This file has the configuration and the reports, `pick` the choice for every sample, `tick` the
//! periodic work, and `group` rails that take turns.

mod group;
mod pick;
mod tick;

use std::sync::Arc;

use serde::Serialize;

use super::{
    Change, Fault, HealthCfgs, MAX_RAILS, Meters, RailId, RailPolicy, RailState, Score,
    ScoredRails, Turn,
    scores::{Average, Window},
    state::Standing,
};
use group::Group;

/// Configuration of the rails to a peer.
#[derive(Clone, Debug)]
pub struct PeerCfgs {
    /// The policy.
    pub policy: RailPolicy,
    /// Settings of health.
    pub health: HealthCfgs,
    /// Number of rails, 1 to [`MAX_RAILS`].
    pub rails: usize,
    /// The rails nearest to each target at the peer (a GPU, or the one CPU engine); all rails if
    /// every NIC is equally near.
    pub targets: Vec<Vec<RailId>>,
}

/// Error of an invalid configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RailsError {
    /// No rails, or too many.
    #[error(
        "{0} rails to one peer: there must be 1 to {MAX_RAILS}; \
         leave out NICs or split the peer in two"
    )]
    Count(usize),
    /// A target names a rail that does not exist.
    #[error("target {target} names rail {rail}, but there are {rails}")]
    NoSuchRail {
        /// Index of the target.
        target: usize,
        /// The rail that the target names.
        rail: u8,
        /// Number of rails.
        rails: usize,
    },
    /// Connections of one rail disagree about its NIC, or a connection's rail does not exist.
    #[error("connection {connection}: {what}")]
    Connection {
        /// Index of the connection.
        connection: usize,
        /// The error.
        what: &'static str,
    },
}

/// A sample that needs a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Index of the sample's target in `targets`.
    pub target: usize,
    /// Length of the sample in bytes.
    pub len: u32,
}

/// Report of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RailReport {
    /// The rail.
    pub rail: RailId,
    /// State of the rail.
    pub state: RailState,
    /// H(x): latency times occupancy.
    pub score: Score,
    /// The latency factor alone.
    pub latency: Score,
    /// Bytes assigned and not retired.
    pub assigned_bytes: u64,
    /// Bytes of samples answered over the rail.
    pub delivered_bytes: u64,
    /// Samples assigned to the rail, including probes.
    pub picked: u64,
    /// Probes sent.
    pub probes: u64,
    /// Number of changes of state.
    pub changes: u64,
}

#[derive(Debug)]
struct Rail {
    standing: Standing,
    average: Average,
    window: Window,
    /// The peer's score of the rail.
    told: Score,
    /// Below 1 if the rail's baseline exceeds the permitted spread.
    bias: f32,
    picked_ns: u64,
    picked: u64,
    probes: u64,
    changes: u64,
}

impl Rail {
    /// Returns the latency factor: the lower of the rail's own measurement and the peer's score.
    fn latency(&self) -> f32 {
        (self.average.published() * self.bias).min(self.told.as_f32())
    }
}

/// All rails to one peer.
#[derive(Debug)]
pub struct PeerRails {
    policy: RailPolicy,
    health: HealthCfgs,
    rails: Box<[Rail]>,
    scored: ScoredRails,
    meters: Arc<Meters>,
    /// All rails, for the turn at this end.
    all: Group,
    targets: Box<[Group]>,
    far: Score,
    turn: Turn,
    decisions: u32,
    probe_at: usize,
    class_of: usize,
    next_tick_ns: u64,
    scratch: Box<[f32]>,
}

impl PeerRails {
    /// Creates the rails, all down, with an interior of full health.
    ///
    /// # Errors
    /// [`RailsError`] if the number of rails is invalid or a target names an unknown rail.
    pub fn new(cfgs: &PeerCfgs) -> Result<Self, RailsError> {
        let n = cfgs.rails;
        if n == 0 || n > MAX_RAILS {
            return Err(RailsError::Count(n));
        }
        for (target, own) in cfgs.targets.iter().enumerate() {
            if let Some(r) = own.iter().find(|r| r.index() >= n) {
                return Err(RailsError::NoSuchRail {
                    target,
                    rail: r.0,
                    rails: n,
                });
            }
        }
        let all: Vec<_> = (0..n).map(|i| RailId(i as u8)).collect();
        Ok(PeerRails {
            policy: cfgs.policy,
            health: cfgs.health,
            rails: (0..n)
                .map(|_| Rail {
                    standing: Standing::new(&cfgs.health),
                    average: Average::new(0),
                    window: Window::default(),
                    told: Score::ONE,
                    bias: 1.0,
                    picked_ns: 0,
                    picked: 0,
                    probes: 0,
                    changes: 0,
                })
                .collect(),
            scored: ScoredRails::new(n),
            meters: Arc::new(Meters::new(n)),
            all: Group::new(&all),
            targets: cfgs.targets.iter().map(|t| Group::new(t)).collect(),
            far: Score::ONE,
            turn: Turn::default(),
            decisions: 0,
            probe_at: 0,
            class_of: 0,
            next_tick_ns: 0,
            scratch: vec![0.0; n].into(),
        })
    }

    /// Returns the meters, which completing threads write.
    pub fn meters(&self) -> &Arc<Meters> {
        &self.meters
    }

    /// Sets the health of the peer's interior, as the peer reports it.
    pub fn set_far(&mut self, score: Score) {
        self.far = score;
    }

    /// Sets the peer's score of a rail. The lower score of both ends counts.
    pub fn set_told(&mut self, rail: RailId, score: Score) {
        if let Some(r) = self.rails.get_mut(rail.index()) {
            r.told = score;
        }
    }

    /// Returns a rail's state; `None` if the rail does not exist.
    pub fn state(&self, rail: RailId) -> Option<RailState> {
        self.rails.get(rail.index()).map(|r| r.standing.state)
    }

    /// Records that a rail is up, for the first time or again. A failed rail takes only probes
    /// until its hold is over.
    pub fn restored(&mut self, now: u64, rail: RailId, on_change: &mut dyn FnMut(Change)) {
        let Some(r) = self.rails.get_mut(rail.index()) else {
            return;
        };
        let from = r.standing.state;
        r.standing.restore(now);
        if r.standing.state != from {
            // Measurements from before the loss do not apply to the restored rail.
            r.average = Average::new(now);
            r.told = Score::ONE;
            self.changed(now, rail, from, on_change);
        }
    }

    /// Records the loss of a rail. The caller must take back the samples in flight on it.
    pub fn failed(
        &mut self,
        now: u64,
        rail: RailId,
        fault: Fault,
        on_change: &mut dyn FnMut(Change),
    ) {
        let Some(r) = self.rails.get_mut(rail.index()) else {
            return;
        };
        let from = r.standing.state;
        if r.standing.is_up() {
            r.standing.fail(now, fault);
            self.changed(now, rail, from, on_change);
        }
    }

    fn changed(
        &mut self,
        at_ns: u64,
        rail: RailId,
        from: RailState,
        on_change: &mut dyn FnMut(Change),
    ) {
        let r = &mut self.rails[rail.index()];
        r.changes += 1;
        on_change(Change {
            rail,
            from,
            to: r.standing.state,
            latency: Score::from_f32(r.latency()),
            at_ns,
        });
    }

    /// Returns the latency factor of every rail that is up, for the heartbeat to the peer.
    pub fn scores(&self) -> impl Iterator<Item = (RailId, Score)> + '_ {
        let up = self
            .rails
            .iter()
            .enumerate()
            .filter(|(_, r)| r.standing.is_up());
        up.map(|(i, r)| {
            (
                RailId(i as u8),
                Score::from_f32(r.average.published() * r.bias),
            )
        })
    }

    /// Returns a report of each rail.
    pub fn report(&self) -> impl Iterator<Item = RailReport> + '_ {
        self.rails.iter().enumerate().map(|(i, r)| {
            let rail = RailId(i as u8);
            let meter = self.meters.get(rail);
            let occupancy = meter.map_or(1.0, |m| r.window.occupancy(m));
            RailReport {
                rail,
                state: r.standing.state,
                score: Score::from_f32(r.latency() * occupancy),
                latency: Score::from_f32(r.latency()),
                assigned_bytes: meter.map_or(0, |m| m.assigned()),
                delivered_bytes: meter.map_or(0, |m| m.delivered()),
                picked: r.picked,
                probes: r.probes,
                changes: r.changes,
            }
        })
    }
}
