//! The policies by health: they choose a sample's rail from the scores.

use super::{Ends, Path, RailId, RailPolicy, Score, ScoredRails};

/// The last rail chosen, for taking turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    last: RailId,
}

impl Default for Turn {
    /// Returns a turn that begins with rail 0.
    fn default() -> Self {
        Turn { last: RailId(255) }
    }
}

/// Returns the path with the highest score; the own path unless another is better.
fn best(ends: &Ends, rails: &ScoredRails) -> Path {
    let own = ends.own();
    match rails
        .best(|_| true)
        .map(|(rail, score)| ends.over(rail, score))
    {
        Some(other) if other.score > own.score => other,
        _ => own,
    }
}

/// Returns the path over the rail with the lowest score above m; the own path without one.
fn best_fit(ends: &Ends, rails: &ScoredRails) -> Path {
    let fit = rails.lowest_above(ends.threshold());
    fit.map_or_else(|| ends.own(), |(rail, score)| ends.over(rail, score))
}

/// Returns the path over the next rail within `delta` of m in turn; the own path without one.
fn spray(
    ends: &Ends,
    rails: &ScoredRails,
    delta: Score,
    above_only: bool,
    turn: &mut Turn,
) -> Path {
    let m = ends.threshold();
    let delta = u64::from(delta.steps());
    let low = if above_only {
        m
    } else {
        m.saturating_sub(delta)
    };
    match rails.next_after(turn.last, low..=m + delta) {
        Some((rail, score)) => {
            turn.last = rail;
            ends.over(rail, score)
        }
        None => ends.own(),
    }
}

impl RailPolicy {
    /// Chooses a path by this policy. `rails` holds the rails in service, including those of
    /// `ends`.
    pub(super) fn choose(self, ends: &Ends, rails: &ScoredRails, turn: &mut Turn) -> Path {
        match self {
            RailPolicy::Best => best(ends, rails),
            RailPolicy::HealthBestFit => best_fit(ends, rails),
            RailPolicy::HealthSpray { delta, above_only } => {
                spray(ends, rails, delta, above_only, turn)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::paths::tests::{case, enumerate, list, score},
        *,
    };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn best_is_the_maximum_over_every_path((rails, ends) in case(64)) {
            let best = best(&ends, &list(&rails));
            let all = enumerate(&ends, &rails);
            prop_assert_eq!(Some(best.score), all.iter().map(|p| p.score).max());
            prop_assert!(all.contains(&best), "{:?} is a path by the definitions", best);
        }

        /// The policy leaves the own path exactly if a rail across beats it, and its choice is
        /// never worse.
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
            let mut turn = Turn { last: RailId(start) };
            let m = ends.threshold();
            let inside = |h: &Score| {
                let (h, delta) = (u64::from(h.steps()), u64::from(delta.steps()));
                h <= m + delta && (h >= m || (!above_only && h + delta >= m))
            };
            let window = rails.iter().filter(|h| inside(h)).count();
            for _ in 0..rounds * window.max(1) {
                let path = spray(&ends, &list, delta, above_only, &mut turn);
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
