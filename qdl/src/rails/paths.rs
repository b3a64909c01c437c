//! Paths to a GPU, and which is better.
//!
//! A *rail* joins a NIC of this node with its partner at the peer. Some rails are the sample's *own* at
//! the near end (their NIC is local to the memory it lies in) and some are the GPU's own at the far end;
//! on any other rail the bytes cross that node's interior, whose health is `H(d)`. A path's score is the
//! product of what it uses:
//!
//! ```text
//!   direct   out on s, in on s                     H(s)                        s is own at both ends
//!   rd       out on s, across the far interior     H(s) * H(far)               s is own here
//!   dr       across the near interior, in on t     H(near) * H(t)              t is own there
//!   drd      across both, over any rail x          H(near) * H(x) * H(far)
//! ```
//!
//! With the h-ratios `gamma(source) = H(s) / H(near)` and `gamma(destination) = H(t) / H(far)`, rd beats dr exactly
//! when `gamma(source) > gamma(destination)`, and drd over x beats both exactly when `H(x) > m`, where m is
//! the greater ratio (the Remote Rail Theorem; it follows that no rail is worth the detour when either ratio
//! is above 1). Where s is own at both ends, m is `H(s) / (H(near) * H(far))` in the same way. So one number
//! divides the sorted list of rails into those worth the detour and those that are not.

use std::cmp::Ordering;

use serde::Serialize;

use super::{RailId, Score};

/// What a path crosses; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    /// A rail that is own at both ends.
    Direct,
    /// The source's own rail, then the destination's interior.
    Rd,
    /// The source's interior, then the destination's own rail.
    Dr,
    /// Both interiors.
    Drd,
}

/// Score of a path: a product of at most three [`Score`]s, exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathScore(u64);

impl PathScore {
    /// The product of three scores.
    pub fn of(a: Score, b: Score, c: Score) -> PathScore {
        PathScore(u64::from(a.steps()) * u64::from(b.steps()) * u64::from(c.steps()))
    }

    /// As a fraction of one.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / (1u64 << 48) as f64
    }
}

/// A way to the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The rail it takes.
    pub rail: RailId,
    /// What it crosses.
    pub kind: PathKind,
    /// How good it is.
    pub score: PathScore,
}

/// The two ends of a sample's way, and how healthy what belongs to them is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The source's own rail, where it has one in service.
    pub source: Option<(RailId, Score)>,
    /// The destination's own rail, where it has one in service.
    pub destination: Option<(RailId, Score)>,
    /// Health of the source node's interior.
    pub near: Score,
    /// Health of the destination node's interior.
    pub far: Score,
}

impl Ends {
    /// The path over a rail of this score, crossing no more than it must.
    pub fn over(&self, rail: RailId, score: Score) -> Path {
        let own = |end: Option<(RailId, Score)>| end.is_some_and(|(r, _)| r == rail);
        let (here, there) = (own(self.source), own(self.destination));
        Path {
            rail,
            kind: match (here, there) {
                (true, true) => PathKind::Direct,
                (true, false) => PathKind::Rd,
                (false, true) => PathKind::Dr,
                (false, false) => PathKind::Drd,
            },
            score: PathScore::of(
                if here { Score::ONE } else { self.near },
                score,
                if there { Score::ONE } else { self.far },
            ),
        }
    }

    /// The better of the paths over own rails: direct where there is one, else the better of rd and dr. Of
    /// equal ones dr, which ends at the GPU's own NIC.
    pub fn own(&self) -> Option<Path> {
        let over = |end: Option<(RailId, Score)>| end.map(|(rail, score)| self.over(rail, score));
        match (over(self.source), over(self.destination)) {
            (Some(rd), Some(dr)) if rd.score > dr.score => Some(rd),
            (rd, dr) => dr.or(rd),
        }
    }

    /// `m`, in whole steps of a score, rounded down: a detour over a rail is worth it exactly when the
    /// rail's steps are more. Zero where there is no own rail.
    pub fn threshold(&self) -> u64 {
        let both = u64::from(self.near.steps()) * u64::from(self.far.steps());
        // x * both > own is x > own / both, and x is whole.
        self.own().map_or(0, |own| own.score.0 / both)
    }

    /// How `gamma(source)` compares with `gamma(destination)`; `None` unless both ends have an own rail.
    pub fn compare_ratios(&self) -> Option<Ordering> {
        let ((_, s), (_, t)) = (self.source?, self.destination?);
        let source = u64::from(s.steps()) * u64::from(self.far.steps());
        let destination = u64::from(t.steps()) * u64::from(self.near.steps());
        Some(source.cmp(&destination))
    }
}

/// The h-ratio `gamma`: an own rail's health over that of the node it spares crossing.
pub fn h_ratio(rail: Score, interior: Score) -> f64 {
    f64::from(rail.steps()) / f64::from(interior.steps())
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::{super::OrderedRails, *};

    /// Scores crowd, so that ties and near misses are frequent.
    pub fn score() -> impl Strategy<Value = Score> {
        prop_oneof![
            (1u32..=12).prop_map(|n| Score::from_steps(n << 12)),
            (1u32..=65536).prop_map(Score::from_steps),
            (65530u32..=65536).prop_map(Score::from_steps),
        ]
    }

    /// The rails of these scores, in order.
    pub fn list(rails: &[Score]) -> OrderedRails {
        let mut list = OrderedRails::new(rails.len());
        for (i, s) in rails.iter().enumerate() {
            list.set(RailId(i as u8), *s);
        }
        list
    }

    /// Ends whose own rails are among `rails`.
    pub fn ends(rails: &[Score]) -> impl Strategy<Value = Ends> + use<> {
        let own: Vec<_> = rails
            .iter()
            .enumerate()
            .map(|(i, s)| (RailId(i as u8), *s))
            .collect();
        let end = prop::option::weighted(0.9, prop::sample::select(own));
        (end.clone(), end, score(), score()).prop_map(|(source, destination, near, far)| Ends {
            source,
            destination,
            near,
            far,
        })
    }

    /// Every path there is, by the definitions.
    pub fn enumerate(ends: &Ends, rails: &[Score]) -> Vec<Path> {
        let mut all = Vec::new();
        let one = Score::ONE;
        if let (Some((s, hs)), Some((t, _))) = (ends.source, ends.destination)
            && s == t
        {
            let score = PathScore::of(hs, one, one);
            all.push(Path {
                rail: s,
                kind: PathKind::Direct,
                score,
            });
        }
        if let Some((s, hs)) = ends.source {
            let score = PathScore::of(hs, ends.far, one);
            all.push(Path {
                rail: s,
                kind: PathKind::Rd,
                score,
            });
        }
        if let Some((t, ht)) = ends.destination {
            let score = PathScore::of(ends.near, ht, one);
            all.push(Path {
                rail: t,
                kind: PathKind::Dr,
                score,
            });
        }
        for (x, hx) in rails.iter().enumerate() {
            let score = PathScore::of(ends.near, *hx, ends.far);
            all.push(Path {
                rail: RailId(x as u8),
                kind: PathKind::Drd,
                score,
            });
        }
        all
    }

    fn case() -> impl Strategy<Value = (Vec<Score>, Ends)> {
        prop::collection::vec(score(), 1..24)
            .prop_flat_map(|rails| (ends(&rails), Just(rails)).prop_map(|(e, r)| (r, e)))
    }

    fn score_of(all: &[Path], kind: PathKind) -> Option<PathScore> {
        all.iter().filter(|p| p.kind == kind).map(|p| p.score).max()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// The two-hop comparison: rd beats dr exactly when the source's ratio is greater.
        #[test]
        fn the_greater_ratio_names_the_better_two_hop_path((rails, ends) in case()) {
            let all = enumerate(&ends, &rails);
            let (rd, dr) = (score_of(&all, PathKind::Rd), score_of(&all, PathKind::Dr));
            if let (Some(rd), Some(dr), Some(ratios)) = (rd, dr, ends.compare_ratios()) {
                prop_assert_eq!(rd.cmp(&dr), ratios);
            }
        }

        /// The Remote Rail Theorem: drd over x beats every path over an own rail exactly when H(x) > m.
        #[test]
        fn a_remote_rail_wins_exactly_above_m((rails, ends) in case()) {
            let own = enumerate(&ends, &rails).into_iter()
                .filter(|p| p.kind != PathKind::Drd).map(|p| p.score).max();
            for (x, hx) in rails.iter().enumerate() {
                let drd = PathScore::of(ends.near, *hx, ends.far);
                let wins = own.is_none_or(|o| drd > o);
                prop_assert_eq!(wins, u64::from(hx.steps()) > ends.threshold(), "rail {}", x);
            }
        }

        /// Its corollary: with either ratio above 1 no remote rail wins.
        #[test]
        fn no_detour_with_a_ratio_above_one((rails, ends) in case()) {
            let above = |end: Option<(RailId, Score)>, node: Score| end.is_some_and(|(_, h)| h > node);
            if above(ends.source, ends.near) || above(ends.destination, ends.far) {
                prop_assert!(rails.iter().all(|h| u64::from(h.steps()) <= ends.threshold()));
            }
        }

        /// `over` crosses no more than it must, and `own` is the best over own rails.
        #[test]
        fn own_is_the_best_of_the_own_rails((rails, ends) in case()) {
            let all = enumerate(&ends, &rails);
            let best = all.iter().filter(|p| p.kind != PathKind::Drd).map(|p| p.score).max();
            prop_assert_eq!(ends.own().map(|p| p.score), best);
            for (x, hx) in rails.iter().enumerate() {
                let rail = RailId(x as u8);
                let best = all.iter().filter(|p| p.rail == rail).map(|p| p.score).max();
                prop_assert_eq!(Some(ends.over(rail, *hx).score), best);
            }
        }
    }
}
