//! Groups of rails that take turns: all rails, or a target's own rails.

use super::super::{RailId, Score, ScoredRails};

/// The rails, and the index of the next in turn.
#[derive(Clone, Debug)]
pub(super) struct Group {
    rails: Box<[RailId]>,
    turn: usize,
}

impl Group {
    pub fn new(rails: &[RailId]) -> Self {
        Group {
            rails: rails.into(),
            turn: 0,
        }
    }

    pub fn has(&self, rail: RailId) -> bool {
        self.rails.contains(&rail)
    }

    /// Returns the next rail in turn that is in service.
    pub fn next(&mut self, scored: &ScoredRails) -> Option<(RailId, Score)> {
        for _ in 0..self.rails.len() {
            let rail = self.rails[self.turn];
            self.turn = (self.turn + 1) % self.rails.len();
            if let Some(score) = scored.score(rail) {
                return Some((rail, score));
            }
        }
        None
    }

    /// Returns the best rail in service.
    pub fn best(&self, scored: &ScoredRails) -> Option<(RailId, Score)> {
        let each = self
            .rails
            .iter()
            .filter_map(|r| Some((*r, scored.score(*r)?)));
        each.max_by_key(|(_, score)| *score)
    }
}
