//! Rails that take turns: all there are, or the own ones of a target.

use super::super::{MAX_RAILS, OrderedRails, RailId, Score};

/// The rails, and whose turn it is.
#[derive(Clone, Debug)]
pub(super) struct Group {
    rails: Box<[RailId]>,
    has: [u64; MAX_RAILS / 64],
    turn: usize,
}

impl Group {
    pub fn new(rails: &[RailId]) -> Self {
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

    pub fn has(&self, rail: RailId) -> bool {
        self.has[rail.index() / 64] >> (rail.0 % 64) & 1 == 1
    }

    /// The next in turn that is in service.
    pub fn next(&mut self, list: &OrderedRails) -> Option<(RailId, Score)> {
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
    pub fn best(&self, list: &OrderedRails, rails: usize) -> Option<(RailId, Score)> {
        if self.rails.len() >= rails {
            return list.best();
        }
        let scored = |r: &RailId| list.score(*r).map(|s| (*r, s));
        self.rails.iter().filter_map(scored).max_by_key(|(_, s)| *s)
    }
}
