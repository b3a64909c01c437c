//! What is done for every sample.

use super::{
    super::{Ends, PathKind, RailId, RailPolicy, RailState, Score},
    Choice, PeerRails, Want,
    group::Group,
};

/// Rails soiled by completions that one decision puts right. More wait for the next.
const CLEANED: usize = 16;

impl PeerRails {
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
            // A frontend's: nothing measures it, and every NIC is taken to be as near to the samples as any other.
            near: Score::ONE,
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
}
