//! Rail-only or rail-optimised: for given scores, is a spine above the rails worth having?
//!
//! In a *rail-only* network the rails meet nowhere but inside the nodes: a sample that starts at one
//! rail's NIC and belongs to another's GPU goes by rd, dr or drd. In a *rail-optimised* network a spine
//! joins the rails: out on s, across the spine, in on t, for `H(s) * H(spine) * H(t)`. The spine is better
//! exactly when
//!
//! ```text
//!   H(spine) > max( 1 / gamma(source), 1 / gamma(destination), H(x) / (gamma(source) * gamma(destination)) )
//! ```
//!
//! with x the best rail of all; the three bounds are what it takes to beat rd, dr and drd.

use std::cmp::Ordering;

use serde::Serialize;

use super::{Ends, OrderedRails, Path, PathScore, Score, best, h_ratio};

/// Which network serves these two ends better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Design {
    /// Nodes' interiors alone join the rails.
    RailOnly,
    /// A spine joins them.
    RailOptimised,
    /// Neither is better.
    Equal,
}

/// What [`compare`] found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// The better design.
    pub better: Design,
    /// Best path without the spine.
    pub rail_only: Path,
    /// Score across the spine; a rail that is own at both ends needs none.
    pub spine: PathScore,
    /// The health a spine must exceed to be worth having; above 1 no spine is.
    pub needed: f64,
}

/// Compares the two designs for a sample between `ends`, with a spine of health `spine`. `None` unless both
/// ends have an own rail.
pub fn compare(ends: &Ends, rails: &OrderedRails, spine: Score) -> Option<Comparison> {
    let ((s, source), (t, destination)) = (ends.source?, ends.destination?);
    let rail_only = best(ends, rails)?;
    let across = if s == t {
        PathScore::of(source, Score::ONE, Score::ONE)
    } else {
        PathScore::of(source, spine, destination)
    };
    // A rail-optimised network has every path of a rail-only one besides; what is asked is whether the spine
    // adds anything.
    let better = match across.cmp(&rail_only.score) {
        Ordering::Greater => Design::RailOptimised,
        Ordering::Equal => Design::Equal,
        Ordering::Less => Design::RailOnly,
    };
    let (gamma_s, gamma_t) = (h_ratio(source, ends.near), h_ratio(destination, ends.far));
    let remote = rails.best().map_or(0.0, |(_, h)| h.as_f64());
    let needed = if s == t {
        f64::INFINITY
    } else {
        (1.0 / gamma_s)
            .max(1.0 / gamma_t)
            .max(remote / (gamma_s * gamma_t))
    };
    Some(Comparison {
        better,
        rail_only,
        spine: across,
        needed,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::paths::tests::{ends, enumerate, list, score},
        *,
    };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// The answer is that of comparing every path with the one across the spine, and the inequality
        /// agrees with it.
        #[test]
        fn the_inequality_decides(
            (rails, ends) in prop::collection::vec(score(), 1..16)
                .prop_flat_map(|r| (ends(&r), Just(r)).prop_map(|(e, r)| (r, e))),
            spine in score(),
        ) {
            let Some(found) = compare(&ends, &list(&rails), spine) else {
                prop_assert!(ends.source.is_none() || ends.destination.is_none());
                return Ok(());
            };
            let ((s, hs), (t, ht)) = (ends.source.expect("compared"), ends.destination.expect("compared"));
            let most = enumerate(&ends, &rails).iter().map(|p| p.score).max().expect("there are rails");
            if s == t {
                prop_assert_ne!(found.better, Design::RailOptimised);
                return Ok(());
            }
            let across = PathScore::of(hs, spine, ht);
            prop_assert_eq!(found.better == Design::RailOptimised, across > most);
            prop_assert_eq!(found.better == Design::RailOnly, across < most);
            // The ratios are rounded: a hair's breadth from equality they say nothing.
            if (spine.as_f64() / found.needed - 1.0).abs() > 1e-9 {
                prop_assert_eq!(found.better == Design::RailOptimised, spine.as_f64() > found.needed);
            }
        }
    }
}
