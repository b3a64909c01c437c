//! The choice of a rail for each sample.

use super::{
    super::{Ends, RailId, RailPolicy, RailState, Score},
    PeerRails, Want,
    group::Group,
};

impl PeerRails {
    /// Chooses the rail for a sample and counts its bytes as assigned: the caller must report them
    /// to [`Meters`](super::super::Meters) as completed or taken back. `takes` returns whether a
    /// rail has room now. `None` if no rail that is up has room.
    ///
    /// Allocates nothing; visits every rail.
    pub fn pick(&mut self, now: u64, want: Want, takes: impl Fn(RailId) -> bool) -> Option<RailId> {
        self.score_all();
        self.decisions = self.decisions.wrapping_add(1);
        if self
            .decisions
            .is_multiple_of(self.health.probe_one_in.max(1))
            && let Some(rail) = self.due(now, &takes)
        {
            self.rails[rail.index()].probes += 1;
            self.assign(now, rail, want.len);
            return Some(rail);
        }
        let path = match self.ends(want.target) {
            Some(ends) => Some(self.policy.choose(&ends, &self.scored, &mut self.turn)),
            None => None,
        };
        let rail = match path {
            Some(p) if takes(p.rail) => p.rail,
            _ => self.any(&takes)?,
        };
        self.assign(now, rail, want.len);
        Some(rail)
    }

    /// Returns the ends of the paths to a target; `None` while no rail is in service.
    fn ends(&mut self, target: usize) -> Option<Ends> {
        let (scored, best) = (&self.scored, self.policy == RailPolicy::Best);
        let turn = |group: &mut Group| match best {
            true => group.best(scored),
            false => group.next(scored),
        };
        let source = turn(&mut self.all)?;
        let target = match self.targets.get_mut(target) {
            // The rail in turn is the target's own: the target needs no second one.
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
        if let Some(m) = self.meters.get(rail) {
            m.assign(len);
        }
    }

    /// Updates the scores of the rails in service with their bytes in flight.
    fn score_all(&mut self) {
        let (rails, meters) = (&self.rails, &self.meters);
        self.scored.set(|rail| {
            let (r, meter) = (rails.get(rail.index())?, meters.get(rail)?);
            let in_service = r.standing.state == RailState::InService;
            in_service.then(|| Score::from_f32(r.latency() * r.window.occupancy(meter)))
        });
    }

    /// Returns the next rail due for a probe: up, without bytes in flight, and unused for the
    /// interval.
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

    /// Returns the best rail with room: in service, or merely up if no rail is in service.
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
}
