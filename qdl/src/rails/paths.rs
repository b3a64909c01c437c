//! Scores of a sample's paths, including the crossing of the peer's node.
//!
//! All local NICs are equally near to a sample. At the peer some rails are the target's *own*:
//! their NIC is nearest to the target's GPU. Over any other rail the bytes also cross the peer's
//! node, whose interior has a health `H(far)`:
//!
//! ```text
//! own       in on t, the target's own rail           H(t) across    over any rail x, and across
//! the node     H(x) * H(far)
//! ```
//!
//! The *own path* of a sample is the better of two paths: over the target's own rail in turn, and
//! over the local rail in turn. A rail x beats the own path exactly if `H(x) > m`, where m is the
//! own path's score divided by `H(far)`, so one number divides the rails.
//! `bench/src/rails/theorem.rs` tests the theorem for local NICs that differ, too.

use super::{RailId, Score};

/// Score of a path: a product of two [`Score`]s, exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PathScore(u64);

impl PathScore {
    pub fn of(rail: Score, interior: Score) -> PathScore {
        PathScore(u64::from(rail.steps()) * u64::from(interior.steps()))
    }
}

/// A rail and the score of the path over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub rail: RailId,
    pub score: PathScore,
}

/// Both ends of a sample's paths, and the health between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    /// The rail in turn, of all in service.
    pub source: (RailId, Score),
    /// The target's own rail in turn; `None` if no own rail is in service.
    pub target: Option<(RailId, Score)>,
    /// Health of the peer's interior.
    pub far: Score,
}

impl Ends {
    /// Returns the path over a rail of this score.
    pub fn over(&self, rail: RailId, score: Score) -> Path {
        let own = self.target.is_some_and(|(t, _)| t == rail);
        let interior = if own { Score::ONE } else { self.far };
        Path {
            rail,
            score: PathScore::of(score, interior),
        }
    }

    /// Returns the own path; with equal scores, over the target's own rail.
    pub fn own(&self) -> Path {
        let source = self.over(self.source.0, self.source.1);
        match self.target.map(|(rail, score)| self.over(rail, score)) {
            Some(target) if source.score <= target.score => target,
            _ => source,
        }
    }

    /// Returns `m` in whole steps of a score, rounded down: a rail beats the own path exactly if it
    /// has more steps.
    pub fn threshold(&self) -> u64 {
        // x * far > own is x > own / far, and x is an integer.
        self.own().score.0 / u64::from(self.far.steps())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::{super::ScoredRails, *};

    /// Scores with frequent ties and near ties.
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

    /// Rails, and ends among them.
    pub fn case(most: usize) -> impl Strategy<Value = (Vec<Score>, Ends)> {
        prop::collection::vec(score(), 1..most)
            .prop_flat_map(|rails| (ends(&rails), Just(rails)).prop_map(|(e, r)| (r, e)))
    }

    /// Every path by definition: over the target's own rail, and over every rail across.
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

        /// A rail x beats the own path exactly if H(x) > m.
        #[test]
        fn a_rail_is_worth_the_way_across_exactly_above_m((rails, ends) in case(24)) {
            for (x, hx) in rails.iter().enumerate() {
                let wins = PathScore::of(*hx, ends.far) > ends.own().score;
                prop_assert_eq!(wins, u64::from(hx.steps()) > ends.threshold(), "rail {}", x);
            }
        }

        /// `over` crosses the node only if necessary; `own` is the better path of the two in turn.
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
