//! The rails to one peer: which of them takes the next sample.

use std::sync::Arc;

use serde::Serialize;

use super::{
    Change, Ends, Fault, HealthCfgs, MAX_RAILS, Meters, OrderedRails, PathKind, RailId, RailPolicy,
    RailState, Score, Turn,
    scores::{Average, Window},
    state::Standing,
};

/// What the rails to a peer are made of.
#[derive(Clone, Debug)]
pub struct PeerCfgs {
    /// How to choose.
    pub policy: RailPolicy,
    /// How health is judged.
    pub health: HealthCfgs,
    /// How many rails, 1 to [`MAX_RAILS`].
    pub rails: usize,
    /// For each place samples may lie in (a NUMA node's memory, a GPU), the rails whose NIC here is local to it.
    /// Where any NIC will do, all of them.
    pub sources: Vec<Vec<RailId>>,
    /// For each target at the peer (a GPU, or the one CPU engine), the rails whose NIC there is nearest to
    /// it. Where any NIC will do, all of them.
    pub targets: Vec<Vec<RailId>>,
}

/// A configuration that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RailsError {
    /// None, or too many.
    #[error(
        "{0} rails to one peer: there must be 1 to {MAX_RAILS}; leave out NICs or split the peer in two"
    )]
    Count(usize),
    /// A group names a rail there is none of.
    #[error("{group} {index} names rail {rail}, but there are {rails}")]
    NoSuchRail {
        /// `source` or `target`.
        group: &'static str,
        /// Which one.
        index: usize,
        /// The rail it names.
        rail: u8,
        /// How many there are.
        rails: usize,
    },
    /// Lanes of one rail that disagree about its NIC, or lead nowhere.
    #[error("lane {lane}: {what}")]
    Lane {
        /// Index of the lane.
        lane: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A sample that wants a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Index of the place it lies in, below `sources`.
    pub source: usize,
    /// Index of the target it goes to, below `targets`.
    pub target: usize,
    /// Its bytes.
    pub len: u32,
}

/// The rail it got. Its bytes are counted as assigned: they must be reported to [`Meters`] as completed or
/// taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Which.
    pub rail: RailId,
    /// What the path crosses.
    pub kind: PathKind,
    /// It goes there to see how the rail is.
    pub probe: bool,
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

/// Rails soiled by completions that one decision puts right. More wait for the next.
const CLEANED: usize = 16;

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

/// Own rails of a source or target, and whose turn it is.
#[derive(Clone, Debug)]
struct Group {
    rails: Box<[RailId]>,
    has: [u64; MAX_RAILS / 64],
    turn: usize,
}

impl Group {
    fn new(rails: &[RailId]) -> Self {
        let mut has = [0; MAX_RAILS / 64];
        for r in rails {
            has[r.index() / 64] |= 1 << (r.0 % 64);
        }
        Group {
            rails: rails.into(),
            has,
            turn: 0,
        }
    }

    fn has(&self, rail: RailId) -> bool {
        self.has[rail.index() / 64] >> (rail.0 % 64) & 1 == 1
    }

    /// The next in turn that is in service.
    fn next(&mut self, list: &OrderedRails) -> Option<(RailId, Score)> {
        for _ in 0..self.rails.len() {
            let rail = self.rails[self.turn];
            self.turn = if self.turn + 1 == self.rails.len() {
                0
            } else {
                self.turn + 1
            };
            if let Some(score) = list.score(rail) {
                return Some((rail, score));
            }
        }
        None
    }

    /// The best of those in service. Where every rail is own, that is the end of the list.
    fn best(&self, list: &OrderedRails, rails: usize) -> Option<(RailId, Score)> {
        if self.rails.len() >= rails {
            return list.best();
        }
        let scored = |r: &RailId| list.score(*r).map(|s| (*r, s));
        self.rails.iter().filter_map(scored).max_by_key(|(_, s)| *s)
    }
}

/// See the module.
#[derive(Debug)]
pub struct PeerRails {
    policy: RailPolicy,
    health: HealthCfgs,
    rails: Box<[Rail]>,
    list: OrderedRails,
    meters: Arc<Meters>,
    sources: Box<[Group]>,
    targets: Box<[Group]>,
    near: Box<[Score]>,
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
        let groups = |group, lists: &[Vec<RailId>]| {
            for (index, list) in lists.iter().enumerate() {
                if let Some(r) = list.iter().find(|r| r.index() >= n) {
                    return Err(RailsError::NoSuchRail {
                        group,
                        index,
                        rail: r.0,
                        rails: n,
                    });
                }
            }
            Ok(lists.iter().map(|l| Group::new(l)).collect::<Box<[_]>>())
        };
        let sources = groups("source", &cfgs.sources)?;
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
            list: OrderedRails::new(n),
            meters: Arc::new(Meters::new(n)),
            near: vec![Score::ONE; sources.len()].into(),
            sources,
            targets: groups("target", &cfgs.targets)?,
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

    /// Health of the interior here, as crossed from a source to a NIC that is not its own.
    pub fn set_near(&mut self, source: usize, score: Score) {
        if let Some(s) = self.near.get_mut(source) {
            *s = score;
        }
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

    /// A rail is up: for the first time, or again. One that failed takes probes alone until it is trusted.
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
        self.place(rail);
    }

    /// Puts a rail where it belongs in the list.
    fn place(&mut self, rail: RailId) {
        let (r, Some(meter)) = (&self.rails[rail.index()], self.meters.get(rail)) else {
            return;
        };
        if r.standing.state == RailState::InService {
            let score = r.latency() * r.window.occupancy(meter);
            self.list.set(rail, Score::from_f32(score));
        } else {
            self.list.remove(rail);
        }
    }

    /// Folds what was measured into the scores, when it is time. Cheap to call more often.
    pub fn tick(&mut self, now: u64, on_change: &mut dyn FnMut(Change)) {
        if now < self.next_tick_ns {
            return;
        }
        self.next_tick_ns = now.saturating_add(self.health.tick_ns);
        for (i, r) in self.rails.iter_mut().enumerate() {
            if let Some(m) = self.meters.get(RailId(i as u8)) {
                r.average.fold(now, self.health.ewma_ns, &m.gauge);
                r.window.fold(now, m);
            }
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
            if r.standing.state == from {
                self.place(rail);
            } else {
                out += usize::from(r.standing.state == RailState::Congested);
                self.changed(now, rail, from, on_change);
            }
        }
    }

    /// The upper median of the latency factors of rails that are up.
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

    /// Looks at one size class each tick: a rail whose baseline there is out of proportion to the best
    /// rail's was slow before anybody looked.
    fn compare_baselines(&mut self) {
        self.class_of = (self.class_of + 1) % self.rails.len();
        let Some(class) = self
            .meters
            .get(RailId(self.class_of as u8))
            .map(|m| m.gauge.last_class())
        else {
            return;
        };
        let meters = self.meters.clone();
        let base = |i: usize| meters.get(RailId(i as u8))?.gauge.baseline_of(class);
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

    /// Chooses the rail for a sample and counts its bytes as assigned. `takes` says whether a rail has
    /// room now. `None` when no rail that is up has.
    ///
    /// Allocates nothing; O(log K) but for the turn of a spray, which looks at each rail in its window.
    pub fn pick(&mut self, now: u64, want: Want, takes: impl Fn(RailId) -> bool) -> Option<Choice> {
        self.clean();
        self.decisions = self.decisions.wrapping_add(1);
        if self
            .decisions
            .is_multiple_of(self.health.probe_one_in.max(1))
            && let Some(rail) = self.due(now, &takes)
        {
            self.rails[rail.index()].probes += 1;
            return Some(self.assign(now, rail, want, true));
        }
        let ends = self.ends(want);
        let path = self.policy.choose(&ends, &self.list, &mut self.turn);
        let rail = match path {
            Some(p) if takes(p.rail) => p.rail,
            _ => self.any(&takes)?,
        };
        Some(self.assign(now, rail, want, false))
    }

    /// The ends of a sample's way, with the own rails whose turn it is.
    fn ends(&mut self, want: Want) -> Ends {
        let (list, best) = (&self.list, self.policy == RailPolicy::Best);
        let all = self.rails.len();
        let own = |group: Option<&mut Group>| {
            let group = group?;
            if best {
                group.best(list, all)
            } else {
                group.next(list)
            }
        };
        let source = own(self.sources.get_mut(want.source));
        let target = self.targets.get_mut(want.target);
        let destination = match (source, target) {
            // A rail that is own at both ends needs no second.
            (Some((rail, score)), Some(group)) if group.has(rail) => Some((rail, score)),
            (_, group) => own(group),
        };
        Ends {
            source,
            destination,
            near: self.near.get(want.source).copied().unwrap_or(Score::ONE),
            far: self.far,
        }
    }

    fn assign(&mut self, now: u64, rail: RailId, want: Want, probe: bool) -> Choice {
        let r = &mut self.rails[rail.index()];
        r.picked += 1;
        r.picked_ns = now;
        if let Some(m) = self.meters.get(rail) {
            m.assign(want.len);
        }
        self.place(rail);
        let own = |groups: &[Group], i: usize| groups.get(i).is_some_and(|g| g.has(rail));
        let kind = match (
            own(&self.sources, want.source),
            own(&self.targets, want.target),
        ) {
            (true, true) => PathKind::Direct,
            (true, false) => PathKind::Rd,
            (false, true) => PathKind::Dr,
            (false, false) => PathKind::Drd,
        };
        Choice { rail, kind, probe }
    }

    fn clean(&mut self) {
        let Self {
            meters,
            rails,
            list,
            ..
        } = self;
        meters.clean(CLEANED, |rail, meter| {
            let r = &rails[rail.index()];
            if r.standing.state == RailState::InService {
                let score = r.latency() * r.window.occupancy(meter);
                list.set(rail, Score::from_f32(score));
            }
        });
    }

    /// The next rail that is due for a probe: up, nothing in flight on it, and none sent for a while.
    fn due(&mut self, now: u64, takes: impl Fn(RailId) -> bool) -> Option<RailId> {
        let n = self.rails.len();
        let due = (0..n).map(|i| (self.probe_at + i) % n).find(|i| {
            let (r, rail) = (&self.rails[*i], RailId(*i as u8));
            r.standing.is_up()
                && now.saturating_sub(r.picked_ns) >= self.health.probe_every_ns
                && self.meters.get(rail).is_some_and(|m| m.assigned() == 0)
                && takes(rail)
        })?;
        self.probe_at = (due + 1) % n;
        Some(RailId(due as u8))
    }

    /// The best rail that has room, in service or, failing that, merely up.
    fn any(&self, takes: impl Fn(RailId) -> bool) -> Option<RailId> {
        let in_service = self
            .list
            .iter()
            .rev()
            .map(|(rail, _)| rail)
            .find(|r| takes(*r));
        in_service.or_else(|| {
            // Samples wait rather than go by a congested rail; but where there is no rail in service at all,
            // any is better than none.
            if !self.list.is_empty() {
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
