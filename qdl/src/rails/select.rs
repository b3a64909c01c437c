//! The policies: which path a sample takes, given the scores.

use super::{Ends, OrderedRails, Path, RailId, RailPolicy, Score};

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    last: RailId,
}

impl Default for Turn {
    /// Begins with rail 0.
    fn default() -> Self {
        Turn { last: RailId(255) }
    }
}

/// The path with the highest score of all; an own rail where a detour is no better. `None` when no rail is
/// in service.
///
/// `rails` holds the scores of all rails in service, those of `ends` among them.
pub fn best(ends: &Ends, rails: &OrderedRails) -> Option<Path> {
    let detour = rails.best().map(|(rail, score)| ends.over(rail, score));
    match (ends.own(), detour) {
        (Some(own), Some(detour)) if detour.score > own.score => Some(detour),
        (own, detour) => own.or(detour),
    }
}

/// The lowest score above m; the better own path when there is none, and the best rail when there is no own
/// path to be measured against. O(log K).
pub fn best_fit(ends: &Ends, rails: &OrderedRails) -> Option<Path> {
    let Some(own) = ends.own() else {
        return best(ends, rails);
    };
    let fit = rails.lowest_above(ends.threshold());
    Some(fit.map_or(own, |(rail, score)| ends.over(rail, score)))
}

/// The next in turn of the rails within `delta` of m, found by two binary searches; the better own path when
/// there is none. Without an own path m is the best score there is.
pub fn spray(
    ends: &Ends,
    rails: &OrderedRails,
    delta: Score,
    above_only: bool,
    turn: &mut Turn,
) -> Option<Path> {
    let own = ends.own();
    let m = if own.is_some() {
        ends.threshold()
    } else {
        u64::from(rails.best()?.1.steps())
    };
    let delta = u64::from(delta.steps());
    let low = if above_only {
        m
    } else {
        m.saturating_sub(delta)
    };
    match rails.window(low, m + delta).next_after(turn.last) {
        Some((rail, score)) => {
            turn.last = rail;
            Some(ends.over(rail, score))
        }
        None => own.or_else(|| best(ends, rails)),
    }
}

impl RailPolicy {
    /// Chooses a path by this policy.
    pub fn choose(self, ends: &Ends, rails: &OrderedRails, turn: &mut Turn) -> Option<Path> {
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
        super::{
            PathKind,
            paths::tests::{ends, enumerate, list, score},
        },
        *,
    };

    fn case() -> impl Strategy<Value = (Vec<Score>, Ends)> {
        prop::collection::vec(score(), 1..64)
            .prop_flat_map(|rails| (ends(&rails), Just(rails)).prop_map(|(e, r)| (r, e)))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn best_is_the_maximum_over_every_path((rails, ends) in case()) {
            let best = best(&ends, &list(&rails)).expect("there are rails");
            let all = enumerate(&ends, &rails);
            prop_assert_eq!(Some(best.score), all.iter().map(|p| p.score).max());
            prop_assert!(all.contains(&best), "{:?} is a path by the definitions", best);
        }

        /// drd is chosen exactly when some drd beats the own paths, and what is chosen is never worse
        /// than the better of them.
        #[test]
        fn best_fit_takes_a_detour_exactly_when_one_is_better((rails, ends) in case()) {
            let fit = best_fit(&ends, &list(&rails)).expect("there are rails");
            let all = enumerate(&ends, &rails);
            let own = all.iter().filter(|p| p.kind != PathKind::Drd).map(|p| p.score).max();
            if let Some(own) = own {
                let better = all.iter().any(|p| p.kind == PathKind::Drd && p.score > own);
                prop_assert_eq!(fit.kind == PathKind::Drd, better);
                prop_assert!(fit.score >= own);
            }
        }

        #[test]
        fn best_fit_equals_a_linear_scan((rails, ends) in case()) {
            let fit = best_fit(&ends, &list(&rails)).expect("there are rails");
            let scan = rails.iter().enumerate()
                .filter(|(_, h)| u64::from(h.steps()) > ends.threshold())
                .min_by_key(|(i, h)| (**h, *i));
            match (ends.own(), scan) {
                (Some(_), Some((i, h))) => prop_assert_eq!(fit, ends.over(RailId(i as u8), *h)),
                (Some(own), None) => prop_assert_eq!(fit, own),
                (None, _) => prop_assert_eq!(Some(fit.score), rails.iter().enumerate()
                    .map(|(i, h)| ends.over(RailId(i as u8), *h).score).max()),
            }
        }

        /// Spray uses exactly the rails in the window, each as often as the others within 5 %.
        #[test]
        fn spray_is_even_over_the_window(
            (rails, ends) in case(), delta in score(), above_only: bool, rounds in 21usize..40, start: u8,
        ) {
            let list = list(&rails);
            let mut used = vec![0usize; rails.len()];
            let mut turn = Turn { last: RailId(start) };
            let m = match ends.own() {
                Some(_) => ends.threshold(),
                None => u64::from(rails.iter().max().expect("there are rails").steps()),
            };
            let inside = |h: &Score| {
                let (h, delta) = (u64::from(h.steps()), u64::from(delta.steps()));
                h <= m + delta && (h >= m || (!above_only && h + delta >= m))
            };
            let window = rails.iter().filter(|h| inside(h)).count();
            for _ in 0..rounds * window.max(1) {
                let path = spray(&ends, &list, delta, above_only, &mut turn).expect("there are rails");
                used[usize::from(path.rail.0)] += 1;
                if window == 0 {
                    prop_assert_eq!(Some(path), ends.own());
                }
            }
            if window > 0 {
                for (h, n) in rails.iter().zip(used) {
                    let (low, high) = if inside(h) { (rounds * 95 / 100, rounds * 105 / 100) } else { (0, 0) };
                    prop_assert!((low..=high).contains(&n), "{} of {} turns", n, rounds);
                }
            }
        }
    }

    #[test]
    fn no_rails_no_path() {
        let ends = Ends {
            source: None,
            destination: None,
            near: Score::ONE,
            far: Score::ONE,
        };
        let spray = RailPolicy::HealthSpray {
            delta: Score::ONE,
            above_only: false,
        };
        for policy in [RailPolicy::Best, RailPolicy::HealthBestFit, spray] {
            let empty = OrderedRails::new(4);
            assert_eq!(policy.choose(&ends, &empty, &mut Turn::default()), None);
        }
    }

    #[test]
    fn policies_are_written_as_the_config_writes_them() {
        let read = |text: &str| serde_json::from_str::<RailPolicy>(text);
        assert_eq!(read("\"best\"").expect("known"), RailPolicy::Best);
        let spray = read(r#"{"health_spray": {"delta": 0.25}}"#).expect("known");
        assert_eq!(
            spray,
            RailPolicy::HealthSpray {
                delta: Score::from_ratio(1, 4),
                above_only: false
            }
        );
        assert!(read(r#"{"health_spray": {"delta": 0}}"#).is_err());
    }
}
