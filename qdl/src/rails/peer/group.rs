//! Rails that take turns: all there are, or the own ones of a target.

use super::super::{RailId, Score, ScoredRails};

/// The rails, and whose turn it is.
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

    /// The next in turn that is in service.
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

    /// The best of those in service.
    pub fn best(&self, scored: &ScoredRails) -> Option<(RailId, Score)> {
        let each = self
            .rails
            .iter()
            .filter_map(|r| Some((*r, scored.score(*r)?)));
        each.max_by_key(|(_, score)| *score)
    }
}
