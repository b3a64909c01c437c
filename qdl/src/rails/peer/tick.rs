//! Periodic work: folds measurements into scores, and takes rails out of service or back.

use super::{
    super::{Change, RailId, RailState},
    PeerRails, Rail,
};

impl PeerRails {
    /// Folds the measurements into the scores, if a tick is due. Frequent calls are cheap.
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

    /// Compares the rails' baselines in one size class per tick. A rail beyond the permitted spread
    /// was slow from the start.
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
}
