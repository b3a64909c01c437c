//! What a rail is worth to a sample, once the way through the peer's node is counted.
//!
//! Every NIC here is as near to a sample as any other. At the peer some rails are the target's
//! *own* (their NIC is the one next to its GPU); by any other rail the bytes also cross the peer's
//! node, whose interior has a health `H(far)`:
//!
//! ```text
//!   own       in on t, the target's own rail           H(t)
//!   across    over any rail x, and across the node     H(x) * H(far)
//! ```
//!
//! The *own path* of a sample is the better of two: the target's own rail in turn, and the rail
//! whose turn it is here. A rail x is worth leaving that path exactly when `H(x) > m`, where m is
//! the own path's score over `H(far)`; so one number divides the rails. The theorem
//! for NICs of this node that differ too is tested in `bench/src/rails/theorem.rs`.

use super::{RailId, Score};

/// Score of a path: a product of two [`Score`]s, exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PathScore(u64);

impl PathScore {
    pub fn of(rail: Score, interior: Score) -> PathScore {
        PathScore(u64::from(rail.steps()) * u64::from(interior.steps()))
    }
}

/// A rail, and what going by it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub rail: RailId,
    pub score: PathScore,
}

/// What a sample's paths are measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    /// The rail whose turn it is, of all in service.
    pub source: (RailId, Score),
    /// The target's own rail whose turn it is, where one is in service.
    pub target: Option<(RailId, Score)>,
    /// Health of the peer's interior.
    pub far: Score,
}

impl Ends {
    /// The path over a rail of this score.
    pub fn over(&self, rail: RailId, score: Score) -> Path {
        let own = self.target.is_some_and(|(t, _)| t == rail);
        let interior = if own { Score::ONE } else { self.far };
        Path {
            rail,
            score: PathScore::of(score, interior),
        }
    }

    /// The own path. Of equal ones the target's own rail.
    pub fn own(&self) -> Path {
        let source = self.over(self.source.0, self.source.1);
        match self.target.map(|(rail, score)| self.over(rail, score)) {
            Some(target) if source.score <= target.score => target,
            _ => source,
        }
    }

    /// `m`, in whole steps of a score, rounded down: leaving the own path for a rail is worth it
    /// exactly when the rail's steps are more.
    pub fn threshold(&self) -> u64 {
        // x * far > own is x > own / far, and x is whole.
        self.own().score.0 / u64::from(self.far.steps())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::{super::ScoredRails, *};

    /// Scores crowd, so that ties and near misses are frequent.
    pub fn score() -> impl Strategy<Value = Score> {
        prop_oneof![
            (1u32..=12).prop_map(|n| Score::from_steps(n << 12)),
            (1u32..=65536).prop_map(Score::from_steps),
            (65530u32..=65536).prop_map(Score::from_steps),
        ]
    }

    /// The rails of these scores, in order.
    pub fn list(rails: &[Score]) -> ScoredRails {
        let mut list = ScoredRails::new(rails.len());
        list.set(|rail| rails.get(rail.index()).copied());
        list
    }

    /// Ends whose rails are among `rails`.
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

    /// Rails and ends among them.
    pub fn case(most: usize) -> impl Strategy<Value = (Vec<Score>, Ends)> {
        prop::collection::vec(score(), 1..most)
            .prop_flat_map(|rails| (ends(&rails), Just(rails)).prop_map(|(e, r)| (r, e)))
    }

    /// Every path there is, by the definitions: the target's own rail, and every rail across.
    pub fn enumerate(ends: &Ends, rails: &[Score]) -> Vec<Path> {
        let own = ends.target.map(|(rail, h)| (rail, h, Score::ONE));
        let across = rails.iter().enumerate();
        let across = across.map(|(x, h)| (RailId(x as u8), *h, ends.far));
        own.into_iter()
            .chain(across)
            .map(|(rail, h, interior)| Path {
                rail,
                score: PathScore::of(h, interior),
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// Leaving the own path for x is worth it exactly when H(x) > m.
        #[test]
        fn a_rail_is_worth_the_way_across_exactly_above_m((rails, ends) in case(24)) {
            for (x, hx) in rails.iter().enumerate() {
                let wins = PathScore::of(*hx, ends.far) > ends.own().score;
                prop_assert_eq!(wins, u64::from(hx.steps()) > ends.threshold(), "rail {}", x);
            }
        }

        /// `over` crosses no more than it must, and `own` is the better of the two in turn.
        #[test]
        fn own_is_the_better_of_the_two_in_turn((rails, ends) in case(24)) {
            let all = enumerate(&ends, &rails);
            let over = |rail: RailId| all.iter().filter(|p| p.rail == rail).map(|p| p.score).max();
            let turn = over(ends.source.0).max(ends.target.and_then(|(t, _)| over(t)));
            prop_assert_eq!(Some(ends.own().score), turn);
            for (x, hx) in rails.iter().enumerate() {
                let rail = RailId(x as u8);
                prop_assert_eq!(Some(ends.over(rail, *hx).score), over(rail));
            }
        }
    }
}
