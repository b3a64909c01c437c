//! Choice of a rail under a policy by health, from the scores of a sample's paths. A path's score
//! includes the crossing of the peer's node.
//!
//! All local NICs are equally near to a sample. At the peer some rails are the target's *own*:
//! their NIC is nearest to the target's GPU. Over any other rail the bytes also cross the peer's
//! node, whose interior has the score `H(far)`. `H(x)` is the score of a rail x:
//!
//! ```text
//! own       over t, the target's own rail               H(t)
//! across    over any rail x, and across the node        H(x) * H(far)
//! ```
//!
//! The *own path* of a sample is the better of two paths: over the target's own rail in turn, and
//! over the local rail in turn. A rail x beats the own path exactly if `H(x) > m`, where m is the
//! own path's score divided by `H(far)`. So one threshold m divides the rails.

use std::{cmp::Reverse, ops::RangeInclusive};

use super::{Policy, RailId, Score};

/// A score for each rail in service. A search visits every rail, because a peer has few rails.
#[derive(Clone, Debug)]
pub(super) struct ScoredRails(Box<[Option<Score>]>);

impl ScoredRails {
    /// Creates rails `0..rails`, all out of service.
    pub(crate) fn new(rails: usize) -> Self {
        ScoredRails(vec![None; rails].into())
    }

    /// Sets the score of each rail; `None` takes it out of service.
    pub(crate) fn set(&mut self, of: impl Fn(RailId) -> Option<Score>) {
        for (i, score) in self.0.iter_mut().enumerate() {
            *score = of(RailId(i as u8));
        }
    }

    /// Returns a rail's score; `None` if the rail is out of service.
    pub(crate) fn score(&self, rail: RailId) -> Option<Score> {
        *self.0.get(rail.index())?
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RailId, Score)> + '_ {
        let all = self.0.iter().enumerate();
        all.filter_map(|(i, score)| Some((RailId(i as u8), (*score)?)))
    }

    /// Returns the best rail that `fits`; of equal rails, the one with the highest number.
    pub(crate) fn best(&self, fits: impl Fn(RailId) -> bool) -> Option<(RailId, Score)> {
        let fitting = self.iter().filter(|(rail, _)| fits(*rail));
        fitting.max_by_key(|(_, score)| *score)
    }

    /// Returns the rail with the lowest score above `m`, a number of steps ([`Score::steps`]).
    pub(crate) fn lowest_above(&self, m: u64) -> Option<(RailId, Score)> {
        let above = self
            .iter()
            .filter(|(_, score)| u64::from(score.steps()) > m);
        above.max_by_key(|(rail, score)| Reverse((*score, *rail)))
    }

    /// Returns the first rail cyclically after `last` whose score has a number of steps in `steps`.
    pub(crate) fn next_after(
        &self,
        last: RailId,
        steps: RangeInclusive<u64>,
    ) -> Option<(RailId, Score)> {
        let within = self
            .iter()
            .filter(|(_, s)| steps.contains(&u64::from(s.steps())));
        within.min_by_key(|(rail, _)| rail.0.wrapping_sub(last.0).wrapping_sub(1))
    }
}

/// Returns the score of a path: the exact product of two [`Score`]s, in steps squared.
fn path_score(rail: Score, interior: Score) -> u64 {
    u64::from(rail.steps()) * u64::from(interior.steps())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RailPath {
    pub rail: RailId,
    score: u64,
}

/// Both ends of a sample's paths, and the health between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    /// The rail in turn among all rails in service.
    pub source: (RailId, Score),
    /// The target's own rail in turn; `None` if no own rail is in service.
    pub target: Option<(RailId, Score)>,
    pub far: Score,
}

impl Ends {
    pub(crate) fn over(&self, rail: RailId, score: Score) -> RailPath {
        let own = self.target.is_some_and(|(t, _)| t == rail);
        let interior = if own { Score::ONE } else { self.far };
        RailPath {
            rail,
            score: path_score(score, interior),
        }
    }

    /// Returns the own path: the better of both; with equal scores, over the target's own rail.
    pub(crate) fn own(&self) -> RailPath {
        let source = self.over(self.source.0, self.source.1);
        match self.target.map(|(rail, score)| self.over(rail, score)) {
            Some(target) if source.score <= target.score => target,
            _ => source,
        }
    }

    /// Threshold m in steps, rounded down: a rail beats the own path exactly if its score has more.
    pub(crate) fn threshold(&self) -> u64 {
        // x * far > own is x > own / far, and x is an integer.
        self.own().score / u64::from(self.far.steps())
    }
}

/// Returns the path with the highest score; of equal paths, the own path.
fn best(ends: &Ends, rails: &ScoredRails) -> RailPath {
    let own = ends.own();
    match rails
        .best(|_| true)
        .map(|(rail, score)| ends.over(rail, score))
    {
        Some(other) if other.score > own.score => other,
        _ => own,
    }
}

/// Takes the rail with the lowest score above [`Ends::threshold`], else the own path.
fn best_fit(ends: &Ends, rails: &ScoredRails) -> RailPath {
    let fit = rails.lowest_above(ends.threshold());
    fit.map_or_else(|| ends.own(), |(rail, score)| ends.over(rail, score))
}

/// Takes the next rail with a score within `delta` of [`Ends::threshold`], else the own path.
fn spray(
    ends: &Ends,
    rails: &ScoredRails,
    delta: Score,
    above_only: bool,
    last: &mut RailId,
) -> RailPath {
    let m = ends.threshold();
    let delta = u64::from(delta.steps());
    let low = if above_only {
        m
    } else {
        m.saturating_sub(delta)
    };
    match rails.next_after(*last, low..=m + delta) {
        Some((rail, score)) => {
            *last = rail;
            ends.over(rail, score)
        }
        None => ends.own(),
    }
}

impl Policy {
    /// Chooses a path by this policy; a policy without health keeps to the own path. `rails` holds
    /// the rails in service, including those of `ends`.
    pub(super) fn choose(self, ends: &Ends, rails: &ScoredRails, last: &mut RailId) -> RailPath {
        match self {
            Policy::RoundRobin | Policy::LeastOutstanding => ends.own(),
            Policy::Best => best(ends, rails),
            Policy::HealthBestFit => best_fit(ends, rails),
            Policy::HealthSpray { delta, above_only } => {
                spray(ends, rails, delta, above_only, last)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    /// Scores with frequent ties and near ties.
    fn score() -> impl Strategy<Value = Score> {
        prop_oneof![
            (1u32..=12).prop_map(|n| Score::from_steps(n << 12)),
            (1u32..=65536).prop_map(Score::from_steps),
            (65530u32..=65536).prop_map(Score::from_steps),
        ]
    }

    fn list(rails: &[Score]) -> ScoredRails {
        let mut list = ScoredRails::new(rails.len());
        list.set(|rail| rails.get(rail.index()).copied());
        list
    }

    fn ends(rails: &[Score]) -> impl Strategy<Value = Ends> + use<> {
        let all: Vec<_> = rails
            .iter()
            .enumerate()
            .map(|(i, s)| (RailId(i as u8), *s))
            .collect();
        let rail = prop::sample::select(all);
        let target = prop::option::weighted(0.9, rail.clone());
        (rail, target, score()).prop_map(|(source, target, far)| Ends {
            source,
            target,
            far,
        })
    }

    fn case(most: usize) -> impl Strategy<Value = (Vec<Score>, Ends)> {
        prop::collection::vec(score(), 1..most)
            .prop_flat_map(|rails| (ends(&rails), Just(rails)).prop_map(|(e, r)| (r, e)))
    }

    /// Every path by definition: over the target's own rail, and over every rail across.
    fn enumerate(ends: &Ends, rails: &[Score]) -> Vec<RailPath> {
        let own = ends.target.map(|(rail, h)| (rail, h, Score::ONE));
        let across = rails.iter().enumerate();
        let across = across.map(|(x, h)| (RailId(x as u8), *h, ends.far));
        own.into_iter()
            .chain(across)
            .map(|(rail, h, interior)| RailPath {
                rail,
                score: path_score(h, interior),
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// `over` crosses the node only if necessary; `own` is the better path of the two in turn;
        /// a rail x beats it exactly if H(x) > m.
        #[test]
        fn own_is_the_better_of_the_two_in_turn((rails, ends) in case(24)) {
            let all = enumerate(&ends, &rails);
            let over = |rail: RailId| all.iter().filter(|p| p.rail == rail).map(|p| p.score).max();
            let turn = over(ends.source.0).max(ends.target.and_then(|(t, _)| over(t)));
            prop_assert_eq!(Some(ends.own().score), turn);
            for (x, hx) in rails.iter().enumerate() {
                let rail = RailId(x as u8);
                prop_assert_eq!(Some(ends.over(rail, *hx).score), over(rail));
                let wins = path_score(*hx, ends.far) > ends.own().score;
                prop_assert_eq!(wins, u64::from(hx.steps()) > ends.threshold(), "rail {}", x);
            }
        }

        #[test]
        fn best_is_the_maximum_over_every_path((rails, ends) in case(64)) {
            let best = best(&ends, &list(&rails));
            let all = enumerate(&ends, &rails);
            prop_assert_eq!(Some(best.score), all.iter().map(|p| p.score).max());
            prop_assert!(all.contains(&best), "{:?} is a path by the definitions", best);
        }

        /// The policy leaves the own path exactly if a rail across beats it, never for a worse one.
        #[test]
        fn best_fit_leaves_the_own_path_exactly_for_a_better_one((rails, ends) in case(64)) {
            let (fit, own) = (best_fit(&ends, &list(&rails)), ends.own());
            let better = enumerate(&ends, &rails).iter().any(|p| p.score > own.score);
            prop_assert_eq!(fit != own, better);
            prop_assert_eq!(fit.score > own.score, better);
        }

        /// Spray uses exactly the rails in the window, equally often within 5 %.
        #[test]
        fn spray_is_even_over_the_window(
            (rails, ends) in case(64), delta in score(), above_only: bool, rounds in 21usize..40,
            start: u8,
        ) {
            let list = list(&rails);
            let mut used = vec![0usize; rails.len()];
            let mut last = RailId(start);
            let m = ends.threshold();
            let inside = |h: &Score| {
                let (h, delta) = (u64::from(h.steps()), u64::from(delta.steps()));
                h <= m + delta && (h >= m || (!above_only && h + delta >= m))
            };
            let window = rails.iter().filter(|h| inside(h)).count();
            for _ in 0..rounds * window.max(1) {
                let path = spray(&ends, &list, delta, above_only, &mut last);
                used[usize::from(path.rail.0)] += 1;
                if window == 0 {
                    prop_assert_eq!(path, ends.own());
                }
            }
            if window > 0 {
                for (h, n) in rails.iter().zip(used) {
                    let (low, high) = if inside(h) {
                        (rounds * 95 / 100, rounds * 105 / 100)
                    } else {
                        (0, 0)
                    };
                    prop_assert!((low..=high).contains(&n), "{} of {} turns", n, rounds);
                }
            }
        }
    }
}
