//! Chooses the rail to one peer for each sample.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use serde::Serialize;

use super::{
    Change, Fault, HealthConfig, MAX_RAILS, MS, Meter, Policy, RailId, RailState, Score,
    scores::{Average, RateWindow},
    select::{Ends, ScoredRails},
    state::RailStanding,
};

pub(crate) type Meters = Arc<[CachePadded<Meter>]>;

/// Configuration of the rails to a peer.
#[derive(Clone, Debug)]
pub struct PeerCfgs {
    /// The policy.
    pub policy: Policy,
    /// Thresholds and times of the rails' scores (`health` in YAML).
    pub health: HealthConfig,
    /// Number of rails, 1 to [`MAX_RAILS`].
    pub rails: usize,
    /// For each target at the peer (a GPU, or the one CPU engine): the nearest of these rails, or
    /// all rails if every NIC is equally near.
    pub targets: Vec<Vec<RailId>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct RailReport {
    pub rail: RailId,
    pub state: RailState,
    /// The rail's score: latency factor times occupancy factor.
    pub score: Score,
    pub latency: Score,
    /// Bytes of samples assigned to the rail and not yet retired.
    pub assigned_bytes: u64,
    /// Bytes of samples answered over the rail.
    pub delivered_bytes: u64,
    /// Samples assigned to the rail, including probes.
    pub picked: u64,
    pub probes: u64,
    pub changes: u64,
}

#[derive(Debug)]
struct Rail {
    standing: RailStanding,
    average: Average,
    window: RateWindow,
    /// The rail's score as the peer measures and reports it.
    peers_score: Score,
    /// Factor on `average`: below 1 if the rail's baseline exceeds the permitted spread.
    bias: f32,
    picked_ns: u64,
    picked: u64,
    probes: u64,
    changes: u64,
}

impl Rail {
    /// Returns the latency factor: the lower of the rail's own measurement and the peer's score.
    fn latency(&self) -> f32 {
        (self.average.published() * self.bias).min(self.peers_score.as_f32())
    }
}

/// Some rails of a peer, and the index of the next rail in turn.
#[derive(Clone, Debug)]
struct RailGroup {
    rails: Box<[RailId]>,
    turn: usize,
}

impl RailGroup {
    fn new(rails: &[RailId]) -> Self {
        RailGroup {
            rails: rails.into(),
            turn: 0,
        }
    }

    fn has(&self, rail: RailId) -> bool {
        self.rails.contains(&rail)
    }

    fn next(&mut self, scored: &ScoredRails) -> Option<(RailId, Score)> {
        for _ in 0..self.rails.len() {
            let rail = self.rails[self.turn];
            self.turn = (self.turn + 1) % self.rails.len();
            if let Some(score) = scored.score(rail) {
                return Some((rail, score));
            }
        }
        None
    }

    fn best(&self, scored: &ScoredRails) -> Option<(RailId, Score)> {
        let each = self
            .rails
            .iter()
            .filter_map(|r| Some((*r, scored.score(*r)?)));
        each.max_by_key(|(_, score)| *score)
    }
}

#[derive(Debug)]
pub(crate) struct PeerRails {
    policy: Policy,
    health: HealthConfig,
    rails: Box<[Rail]>,
    scored: ScoredRails,
    meters: Meters,
    /// All rails. Its turn says by which NIC of this end a sample leaves.
    all: RailGroup,
    targets: Box<[RailGroup]>,
    far: Score,
    sprayed: RailId,
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
    /// The number of rails is 0 or too large.
    pub(crate) fn new(cfgs: &PeerCfgs) -> Result<Self, String> {
        let n = cfgs.rails;
        if n == 0 || n > MAX_RAILS {
            return Err(format!(
                "{n} rails to one peer: there must be 1 to {MAX_RAILS}; leave out NICs or split \
                 the peer in two"
            ));
        }
        let all: Vec<_> = (0..n).map(|i| RailId(i as u8)).collect();
        Ok(PeerRails {
            policy: cfgs.policy,
            health: cfgs.health,
            rails: (0..n)
                .map(|_| Rail {
                    standing: RailStanding::new(&cfgs.health),
                    average: Average::new(0),
                    window: RateWindow::default(),
                    peers_score: Score::ONE,
                    bias: 1.0,
                    picked_ns: 0,
                    picked: 0,
                    probes: 0,
                    changes: 0,
                })
                .collect(),
            scored: ScoredRails::new(n),
            meters: (0..n).map(|_| CachePadded::default()).collect(),
            all: RailGroup::new(&all),
            targets: cfgs.targets.iter().map(|t| RailGroup::new(t)).collect(),
            far: Score::ONE,
            // Begins with rail 0.
            sprayed: RailId(255),
            decisions: 0,
            probe_at: 0,
            class_of: 0,
            next_tick_ns: 0,
            scratch: vec![0.0; n].into(),
        })
    }

    pub(crate) fn meters(&self) -> &Meters {
        &self.meters
    }

    /// Sets the health of the peer's interior to the score that the peer reports.
    pub(crate) fn set_far(&mut self, score: Score) {
        self.far = score;
    }

    /// Sets the peer's score of a rail. The lower score of both ends counts.
    pub(crate) fn set_peers_score(&mut self, rail: RailId, score: Score) {
        if let Some(r) = self.rails.get_mut(rail.index()) {
            r.peers_score = score;
        }
    }

    /// Records that a rail is up, for the first time or again. After a failure, the rail takes only
    /// probes until its hold time is over.
    pub(crate) fn restored(&mut self, now: u64, rail: RailId, on_change: &mut dyn FnMut(Change)) {
        let Some(r) = self.rails.get_mut(rail.index()) else {
            return;
        };
        let from = r.standing.state;
        r.standing.restore(now);
        if r.standing.state != from {
            // Discard measurements from before the loss.
            r.average = Average::new(now);
            r.peers_score = Score::ONE;
            self.changed(now, rail, from, on_change);
        }
    }

    /// Records the loss of a rail. The caller must take back the samples in flight on it.
    pub(crate) fn failed(
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

    pub(crate) fn report(&self) -> impl Iterator<Item = RailReport> + '_ {
        self.rails.iter().enumerate().map(|(i, r)| {
            let rail = RailId(i as u8);
            let meter = &self.meters[i];
            let occupancy = r.window.occupancy(meter);
            RailReport {
                rail,
                state: r.standing.state,
                score: Score::from_f32(r.latency() * occupancy),
                latency: Score::from_f32(r.latency()),
                assigned_bytes: meter.assigned(),
                delivered_bytes: meter.delivered(),
                picked: r.picked,
                probes: r.probes,
                changes: r.changes,
            }
        })
    }

    /// Chooses the rail for a sample of `len` bytes to a target and counts the bytes as assigned.
    /// The caller must later report the sample as completed or taken back. `takes` returns whether
    /// a rail has room now. `None` if no suitable rail has room.
    ///
    /// Allocates nothing; visits every rail.
    pub(crate) fn pick(
        &mut self,
        now: u64,
        target: usize,
        len: u32,
        takes: impl Fn(RailId) -> bool,
    ) -> Option<RailId> {
        self.score_all();
        self.decisions = self.decisions.wrapping_add(1);
        if self
            .decisions
            .is_multiple_of(self.health.probe_one_in.max(1))
            && let Some(rail) = self.due(now, &takes)
        {
            self.rails[rail.index()].probes += 1;
            self.assign(now, rail, len);
            return Some(rail);
        }
        let path = match self.ends(target) {
            Some(ends) => Some(self.policy.choose(&ends, &self.scored, &mut self.sprayed)),
            None => None,
        };
        let rail = match path {
            Some(p) if takes(p.rail) => p.rail,
            _ => self.any(&takes)?,
        };
        self.assign(now, rail, len);
        Some(rail)
    }

    /// Returns the ends of the paths to a target; `None` while no rail is in service.
    fn ends(&mut self, target: usize) -> Option<Ends> {
        let (scored, best) = (&self.scored, self.policy == Policy::Best);
        let turn = |group: &mut RailGroup| match best {
            true => group.best(scored),
            false => group.next(scored),
        };
        let source = turn(&mut self.all)?;
        let target = match self.targets.get_mut(target) {
            // If the rail in turn at this end is the target's own rail, both ends use it.
            Some(own) if own.has(source.0) => Some(source),
            own => own.and_then(turn),
        };
        Some(Ends {
            source,
            target,
            far: self.far,
        })
    }

    fn assign(&mut self, now: u64, rail: RailId, len: u32) {
        let r = &mut self.rails[rail.index()];
        r.picked += 1;
        r.picked_ns = now;
        self.meters[rail.index()].assign(len);
    }

    /// Computes the scores of the rails in service from latency factor and assigned bytes.
    fn score_all(&mut self) {
        let (rails, meters) = (&self.rails, &self.meters);
        self.scored.set(|rail| {
            let (r, meter) = (&rails[rail.index()], &meters[rail.index()]);
            let in_service = r.standing.state == RailState::InService;
            in_service.then(|| Score::from_f32(r.latency() * r.window.occupancy(meter)))
        });
    }

    /// The next rail to probe: up, without assigned bytes, and not used for the probe interval.
    fn due(&mut self, now: u64, takes: impl Fn(RailId) -> bool) -> Option<RailId> {
        let n = self.rails.len();
        let due = (0..n).map(|i| (self.probe_at + i) % n).find(|i| {
            let (r, rail) = (&self.rails[*i], RailId(*i as u8));
            r.standing.is_up()
                && now.saturating_sub(r.picked_ns) >= self.health.probe_every_ms * MS
                && self.meters[*i].assigned() == 0
                && takes(rail)
        })?;
        self.probe_at = (due + 1) % n;
        Some(RailId(due as u8))
    }

    /// Returns the best rail with room that is in service, or merely up if no rail is in service.
    fn any(&self, takes: impl Fn(RailId) -> bool) -> Option<RailId> {
        let in_service = self.scored.best(&takes).map(|(rail, _)| rail);
        in_service.or_else(|| {
            // Samples wait rather than use a congested rail, unless no rail at all is in service.
            if self.scored.iter().next().is_some() {
                return None;
            }
            let up = self
                .rails
                .iter()
                .enumerate()
                .filter(|(_, r)| r.standing.is_up());
            up.map(|(i, r)| (RailId(i as u8), r.latency()))
                .filter(|(rail, _)| takes(*rail))
                .max_by(|a, b| a.1.total_cmp(&b.1))
                .map(|(rail, _)| rail)
        })
    }

    /// Folds the measurements into the scores, if a tick is due; otherwise costs one comparison.
    pub(crate) fn tick(&mut self, now: u64, on_change: &mut dyn FnMut(Change)) {
        if now < self.next_tick_ns {
            return;
        }
        self.next_tick_ns = now.saturating_add(self.health.tick_ms * MS);
        for (r, meter) in self.rails.iter_mut().zip(self.meters.iter()) {
            r.average.fold(now, self.health.ewma_ms * MS, &meter.gauge);
            r.window.fold(now, meter);
        }
        self.compare_baselines();
        let usual = self.usual();
        let carries = |r: &&Rail| r.standing.is_up();
        let up = self.rails.iter().filter(carries).count();
        let mut out = self
            .rails
            .iter()
            .filter(|r| r.standing.state == RailState::Congested)
            .count();
        for i in 0..self.rails.len() {
            let rail = RailId(i as u8);
            let r = &mut self.rails[i];
            let (from, latency) = (r.standing.state, r.latency());
            let may_go = 2 * (out + 1) <= up;
            r.standing.look(now, &self.health, latency, usual, may_go);
            if r.standing.state != from {
                out += usize::from(r.standing.state == RailState::Congested);
                self.changed(now, rail, from, on_change);
            }
        }
    }

    /// Returns the upper median of the latency factors of rails that are up.
    fn usual(&mut self) -> f32 {
        let mut n = 0;
        for r in self.rails.iter().filter(|r| r.standing.is_up()) {
            self.scratch[n] = r.latency();
            n += 1;
        }
        if n == 0 {
            return 1.0;
        }
        *self.scratch[..n]
            .select_nth_unstable_by(n / 2, f32::total_cmp)
            .1
    }

    /// Compares the rails' baselines in one size class per tick, and lowers the latency factor of
    /// rails beyond the permitted spread: they were slow from the start.
    fn compare_baselines(&mut self) {
        self.class_of = (self.class_of + 1) % self.rails.len();
        let class = self.meters[self.class_of].gauge.last_class();
        let meters = &self.meters;
        let base = |i: usize| meters[i].gauge.baseline_of(class);
        let Some(best) = (0..self.rails.len()).filter_map(base).min() else {
            return;
        };
        for (i, r) in self.rails.iter_mut().enumerate() {
            if let Some(own) = base(i) {
                let most = u64::from(best) * u64::from(self.health.baseline_spread);
                r.bias = (most as f32 / own as f32).min(1.0);
            }
        }
    }
}
