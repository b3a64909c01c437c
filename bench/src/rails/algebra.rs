//! The algebra of rails: four ways to a GPU, and which of them wins for which health.
//!
//! Some rail is the sample's *own* at the near end (its NIC is local to the memory that the sample
//! lies in) and some rail is the GPU's own at the far end; by any other rail the bytes cross that
//! node's interior, whose health is `H(d)`. A path's score is the product of what it uses:
//!
//! ```text
//!   direct   out on s, in on s                     H(s)                   s is own at both ends
//!   rd       out on s, across the far interior     H(s) * H(far)          s is own here
//!   dr       across the near interior, in on t     H(near) * H(t)         t is own there
//!   drd      across both, over any rail x          H(near) * H(x) * H(far)
//! ```
//!
//! With the h-ratios `gamma(source) = H(s) / H(near)` and `gamma(destination) = H(t) / H(far)`, rd
//! beats dr exactly when `gamma(source) > gamma(destination)`, and drd over x beats both exactly
//! when `H(x) > m`, the greater of the two (the Remote Rail Theorem; so no rail is worth the detour
//! where either ratio is above 1). Where s is own at both ends, m is `H(s) / (H(near) * H(far))`.
//!
//! `qdl::rails` chooses by the part of this that a frontend needs, whose NICs are all as near to a
//! sample as any other: `H(near)` is 1, and every rail is own here.

use std::cmp::Ordering;

use qdl::rails::{RailId, Score};
use serde::Serialize;

/// What a path crosses; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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

impl PathKind {
    /// As the tables call it.
    pub fn name(self) -> &'static str {
        match self {
            PathKind::Direct => "direct",
            PathKind::Rd => "rd",
            PathKind::Dr => "dr",
            PathKind::Drd => "drd",
        }
    }
}

/// Score of a path: a product of at most three [`Score`]s, exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// The source's own rail.
    pub source: (RailId, Score),
    /// The destination's own rail.
    pub destination: (RailId, Score),
    /// Health of the source node's interior.
    pub near: Score,
    /// Health of the destination node's interior.
    pub far: Score,
}

impl Ends {
    /// The path over a rail of this score, crossing no more than it must.
    pub fn over(&self, (rail, score): (RailId, Score)) -> Path {
        let (here, there) = (self.source.0 == rail, self.destination.0 == rail);
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

    /// The better of the paths over own rails. Of equal ones dr, which ends at the GPU's own NIC.
    pub fn own(&self) -> Path {
        let (rd, dr) = (self.over(self.source), self.over(self.destination));
        if rd.score > dr.score { rd } else { dr }
    }

    /// The path with the highest score of all; an own rail where a detour is no better.
    pub fn best(&self, rails: &[(RailId, Score)]) -> Path {
        let mut best = self.own();
        for path in rails.iter().map(|r| self.over(*r)) {
            if path.score > best.score {
                best = path;
            }
        }
        best
    }

    /// `m`, in whole steps of a score, rounded down: a detour over a rail is worth it exactly when
    /// the rail's steps are more.
    pub fn threshold(&self) -> u64 {
        // x * near * far > own is x > own / (near * far), and x is whole.
        self.own().score.0 / (u64::from(self.near.steps()) * u64::from(self.far.steps()))
    }

    /// `gamma(source)` and `gamma(destination)`: an own rail's health over that of the interior
    /// which it spares.
    pub fn ratios(&self) -> (f64, f64) {
        let ratio = |rail: Score, interior: Score| rail.as_f64() / interior.as_f64();
        (
            ratio(self.source.1, self.near),
            ratio(self.destination.1, self.far),
        )
    }

    /// How `gamma(source)` compares with `gamma(destination)`, exactly.
    pub fn compare_ratios(&self) -> Ordering {
        let of = |a: Score, b: Score| u64::from(a.steps()) * u64::from(b.steps());
        of(self.source.1, self.far).cmp(&of(self.destination.1, self.near))
    }
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Scores crowd, so that ties and near misses are frequent.
    pub fn score() -> impl Strategy<Value = Score> {
        prop_oneof![
            (1u32..=12).prop_map(|n| Score::from_steps(n << 12)),
            (1u32..=65536).prop_map(Score::from_steps),
            (65530u32..=65536).prop_map(Score::from_steps),
        ]
    }

    /// Rails, and ends whose own rails are among them.
    pub fn case() -> impl Strategy<Value = (Vec<(RailId, Score)>, Ends)> {
        prop::collection::vec(score(), 1..24).prop_flat_map(|scores| {
            let rails: Vec<_> = (0..).map(RailId).zip(scores).collect();
            let end = prop::sample::select(rails.clone());
            (end.clone(), end, score(), score()).prop_map(
                move |(source, destination, near, far)| {
                    let ends = Ends {
                        source,
                        destination,
                        near,
                        far,
                    };
                    (rails.clone(), ends)
                },
            )
        })
    }

    /// Every path there is, by the definitions.
    pub fn enumerate(ends: &Ends, rails: &[(RailId, Score)]) -> Vec<Path> {
        let path = |rail, kind, a, b, c| Path {
            rail,
            kind,
            score: PathScore::of(a, b, c),
        };
        let ((s, hs), (t, ht), one) = (ends.source, ends.destination, Score::ONE);
        let mut all = vec![
            path(s, PathKind::Rd, hs, ends.far, one),
            path(t, PathKind::Dr, ends.near, ht, one),
        ];
        if s == t {
            all.push(path(s, PathKind::Direct, hs, one, one));
        }
        let drd = |(x, hx): &(RailId, Score)| path(*x, PathKind::Drd, ends.near, *hx, ends.far);
        all.extend(rails.iter().map(drd));
        all
    }

    fn highest(all: &[Path], of: impl Fn(&Path) -> bool) -> Option<PathScore> {
        all.iter().filter(|p| of(p)).map(|p| p.score).max()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// The two-hop comparison: rd beats dr exactly when the source's ratio is greater.
        #[test]
        fn the_greater_ratio_names_the_better_two_hop_path((rails, ends) in case()) {
            let all = enumerate(&ends, &rails);
            let rd = highest(&all, |p| p.kind == PathKind::Rd);
            let dr = highest(&all, |p| p.kind == PathKind::Dr);
            prop_assert_eq!(rd.cmp(&dr), ends.compare_ratios());
        }

        /// The Remote Rail Theorem: drd over x beats every path over an own rail exactly when
        /// H(x) > m.
        #[test]
        fn a_remote_rail_wins_exactly_above_m((rails, ends) in case()) {
            let own = highest(&enumerate(&ends, &rails), |p| p.kind != PathKind::Drd);
            for (x, hx) in &rails {
                let drd = Some(PathScore::of(ends.near, *hx, ends.far));
                prop_assert_eq!(drd > own, u64::from(hx.steps()) > ends.threshold(), "{:?}", x);
            }
        }

        /// Its corollary: with either ratio above 1 no remote rail wins.
        #[test]
        fn no_detour_with_a_ratio_above_one((rails, ends) in case()) {
            if ends.source.1 > ends.near || ends.destination.1 > ends.far {
                let most = rails.iter().map(|(_, h)| u64::from(h.steps())).max();
                prop_assert!(most <= Some(ends.threshold()));
            }
        }

        /// `own` and `best` are the best over own rails and over all, each a path by the
        /// definitions, and `over` crosses no more than it must.
        #[test]
        fn best_is_the_maximum_over_every_path((rails, ends) in case()) {
            let all = enumerate(&ends, &rails);
            let (own, best) = (ends.own(), ends.best(&rails));
            prop_assert_eq!(Some(own.score), highest(&all, |p| p.kind != PathKind::Drd));
            prop_assert_eq!(Some(best.score), highest(&all, |_| true));
            prop_assert!(all.contains(&own) && all.contains(&best));
            for rail in &rails {
                let over = Some(ends.over(*rail).score);
                prop_assert_eq!(over, highest(&all, |p| p.rail == rail.0));
            }
        }
    }
}
