//! The rails in service with their scores.

use std::{cmp::Reverse, ops::RangeInclusive};

use super::{RailId, Score};

/// A score for each rail in service. A search visits every rail, because a peer has few.
#[derive(Clone, Debug)]
pub(super) struct ScoredRails(Box<[Option<Score>]>);

impl ScoredRails {
    /// Creates rails `0..rails`, all out of service.
    pub fn new(rails: usize) -> Self {
        ScoredRails(vec![None; rails].into())
    }

    /// Sets the score of each rail; `None` takes it out of service.
    pub fn set(&mut self, of: impl Fn(RailId) -> Option<Score>) {
        for (i, score) in self.0.iter_mut().enumerate() {
            *score = of(RailId(i as u8));
        }
    }

    /// Returns a rail's score; `None` if the rail is out of service.
    pub fn score(&self, rail: RailId) -> Option<Score> {
        *self.0.get(rail.index())?
    }

    /// Returns the rails in service.
    pub fn iter(&self) -> impl Iterator<Item = (RailId, Score)> + '_ {
        let all = self.0.iter().enumerate();
        all.filter_map(|(i, score)| Some((RailId(i as u8), (*score)?)))
    }

    /// Returns the best rail that `fits`; of equal rails, the one with the highest number.
    pub fn best(&self, fits: impl Fn(RailId) -> bool) -> Option<(RailId, Score)> {
        let fitting = self.iter().filter(|(rail, _)| fits(*rail));
        fitting.max_by_key(|(_, score)| *score)
    }

    /// Returns the rail with the lowest score above `m` steps.
    pub fn lowest_above(&self, m: u64) -> Option<(RailId, Score)> {
        let above = self
            .iter()
            .filter(|(_, score)| u64::from(score.steps()) > m);
        above.max_by_key(|(rail, score)| Reverse((*score, *rail)))
    }

    /// Returns the rail after `last`, cyclically, of those whose score is within `steps`.
    pub fn next_after(&self, last: RailId, steps: RangeInclusive<u64>) -> Option<(RailId, Score)> {
        let within = self
            .iter()
            .filter(|(_, s)| steps.contains(&u64::from(s.steps())));
        within.min_by_key(|(rail, _)| rail.0.wrapping_sub(last.0).wrapping_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rails::MAX_RAILS;

    #[test]
    fn searches_go_by_score_and_then_by_number() {
        let mut rails = ScoredRails::new(MAX_RAILS);
        assert_eq!(rails.best(|_| true), None);
        let steps = |rail: RailId| match rail.0 {
            3 | 9 => Some(100),
            5 | 255 => Some(200),
            _ => None,
        };
        rails.set(|rail| steps(rail).map(Score::from_steps));
        let number = |found: Option<(RailId, Score)>| found.map(|(rail, _)| rail.0);
        assert_eq!(number(rails.best(|_| true)), Some(255));
        assert_eq!(number(rails.best(|rail| rail.0 < 9)), Some(5));
        assert_eq!(number(rails.lowest_above(99)), Some(3));
        assert_eq!(number(rails.lowest_above(100)), Some(5));
        assert_eq!(number(rails.lowest_above(200)), None);
        let next = |last, steps| number(rails.next_after(RailId(last), steps));
        assert_eq!(next(3, 0..=200), Some(5));
        assert_eq!(next(3, 0..=100), Some(9));
        assert_eq!(next(255, 0..=200), Some(3), "it goes round");
        assert_eq!(next(0, 0..=99), None);
        assert_eq!(rails.score(RailId(4)), None);
    }
}
