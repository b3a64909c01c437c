//! The rails to one peer: which of them takes the next sample.
//!
//! This file has what they are made of and what can be said about them, `pick` what is done for
//! every sample, `tick` what is done once in a while, and `group` rails that take turns.

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

/// What the rails to a peer are made of.
#[derive(Clone, Debug)]
pub struct PeerCfgs {
    /// How to choose.
    pub policy: RailPolicy,
    /// How health is judged.
    pub health: HealthCfgs,
    /// How many rails, 1 to [`MAX_RAILS`].
    pub rails: usize,
    /// For each target at the peer (a GPU, or the one CPU engine), the rails whose NIC there is
    /// nearest to it. Where any NIC will do, all of them.
    pub targets: Vec<Vec<RailId>>,
}

/// A configuration that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RailsError {
    /// None, or too many.
    #[error(
        "{0} rails to one peer: there must be 1 to {MAX_RAILS}; \
         leave out NICs or split the peer in two"
    )]
    Count(usize),
    /// A target names a rail there is none of.
    #[error("target {target} names rail {rail}, but there are {rails}")]
    NoSuchRail {
        /// Which target.
        target: usize,
        /// The rail it names.
        rail: u8,
        /// How many there are.
        rails: usize,
    },
    /// Connections of one rail that disagree about its NIC, or lead nowhere.
    #[error("connection {connection}: {what}")]
    Connection {
        /// Index of the connection.
        connection: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A sample that wants a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Index of the target it goes to, below `targets`.
    pub target: usize,
    /// Its bytes.
    pub len: u32,
}

/// What there is to say about a rail.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RailReport {
    /// Which.
    pub rail: RailId,
    /// Where it stands.
    pub state: RailState,
    /// H(x): latency and occupancy.
    pub score: Score,
    /// The latency factor alone.
    pub latency: Score,
    /// Bytes assigned and not retired.
    pub assigned_bytes: u64,
    /// Bytes of samples answered over it.
    pub delivered_bytes: u64,
    /// Samples it took, probes included.
    pub picked: u64,
    /// Probes.
    pub probes: u64,
    /// Changes of state.
    pub changes: u64,
}

#[derive(Debug)]
struct Rail {
    standing: Standing,
    average: Average,
    window: Window,
    /// What the peer says of it.
    told: Score,
    /// Below 1 where the baseline itself is out of proportion.
    bias: f32,
    picked_ns: u64,
    picked: u64,
    probes: u64,
    changes: u64,
}

impl Rail {
    /// The latency factor: its own measurements, or what the peer says if that is worse.
    fn latency(&self) -> f32 {
        (self.average.published() * self.bias).min(self.told.as_f32())
    }
}

/// See the module.
#[derive(Debug)]
pub struct PeerRails {
    policy: RailPolicy,
    health: HealthCfgs,
    rails: Box<[Rail]>,
    scored: ScoredRails,
    meters: Arc<Meters>,
    /// All of them, as a source for any sample.
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
    /// All rails down, every interior in full health.
    ///
    /// # Errors
    /// [`RailsError`].
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

    /// What those who complete samples write to.
    pub fn meters(&self) -> &Arc<Meters> {
        &self.meters
    }

    /// Health of the peer's interior, as the peer says.
    pub fn set_far(&mut self, score: Score) {
        self.far = score;
    }

    /// What the peer says of a rail. A rail is as healthy as the end that thinks worse of it.
    pub fn set_told(&mut self, rail: RailId, score: Score) {
        if let Some(r) = self.rails.get_mut(rail.index()) {
            r.told = score;
        }
    }

    /// Where a rail stands; `None` where there is no such rail.
    pub fn state(&self, rail: RailId) -> Option<RailState> {
        self.rails.get(rail.index()).map(|r| r.standing.state)
    }

    /// A rail is up: for the first time, or again. One that failed takes probes alone until it is
    /// trusted.
    pub fn restored(&mut self, now: u64, rail: RailId, on_change: &mut dyn FnMut(Change)) {
        let Some(r) = self.rails.get_mut(rail.index()) else {
            return;
        };
        let from = r.standing.state;
        r.standing.restore(now);
        if r.standing.state != from {
            // What was measured before it was lost says nothing about now.
            r.average = Average::new(now);
            r.told = Score::ONE;
            self.changed(now, rail, from, on_change);
        }
    }

    /// A rail is lost. The samples in flight on it are the caller's to take back.
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

    /// Latency factor of every rail that is up, for the peer.
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

    /// What there is to say about each rail.
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
