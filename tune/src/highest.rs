//! The search for the highest rate that holds: a bracket by doubling, then bisection.
//!
//! Wald's sequential test decides a rate. Until a rate is refuted, one trial that holds raises the
//! rate. The rate of the result gets a full test. The search tests the refuted rate above the
//! result again at the end, so that a disturbance of some seconds does not decide.
//!
//! ```
//! use tune::highest::Highest;
//! let mut search = Highest { near: 1.05, ..Highest::new(100.0) };
//! while let Some(rate) = search.next() {
//!     search.tell(rate <= 30_000.0);
//! }
//! let found = search.found().expect("one");
//! assert!((30_000.0 / 1.05..=30_000.0).contains(&found));
//! ```

use crate::sprt::{self, Decision};

/// The trials at one rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// In the caller's unit.
    pub rate: f64,
    /// Verdicts, in order.
    pub trials: Vec<bool>,
    /// The decision from the trials.
    pub word: Decision,
    /// Whether one trial held before any rate was refuted.
    passed: bool,
    /// Index of the first trial that counts, if the refuted rate is tested again.
    again: Option<usize>,
}

impl Tally {
    pub(crate) fn at(rate: f64) -> Self {
        Tally {
            rate,
            ..Tally::default()
        }
    }

    /// Number of trials that held.
    pub fn held(&self) -> usize {
        self.trials.iter().filter(|held| **held).count()
    }

    pub(crate) fn add(&mut self, held: bool) {
        if self.word == Decision::Refuted {
            self.again = Some(self.trials.len());
        }
        self.trials.push(held);
        self.word = sprt::judge(&self.trials[self.again.unwrap_or(0)..]);
    }
}

/// A search: [`Highest::next`] gives the rate to try, [`Highest::tell`] takes the trial's verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Highest {
    /// The first rate to try.
    pub first: f64,
    /// The lowest rate to try.
    pub least: f64,
    /// The highest rate to try.
    pub most: f64,
    /// The first step of the bracket, a factor above 1. Each further step is the square of the
    /// previous step, at most 2.
    pub step: f64,
    /// The search ends when the lowest refuted rate is at most `near` times the result.
    pub near: f64,
    /// All rates with their trials, ascending.
    pub tallies: Vec<Tally>,
}

const LARGEST_STEP: f64 = 2.0;

impl Highest {
    /// A search from `first` without bounds: by factors of 2, then to 3 %.
    pub fn new(first: f64) -> Self {
        Highest {
            first,
            least: f64::MIN_POSITIVE,
            most: f64::MAX,
            step: LARGEST_STEP,
            near: 1.03,
            tallies: Vec::new(),
        }
    }

    /// The rate to try now; `None` when the search is over.
    pub fn next(&self) -> Option<f64> {
        let retested = |t: &&Tally| t.again.is_some() && t.word == Decision::Undecided;
        if let Some(tally) = self.tallies.iter().find(retested) {
            return Some(tally.rate);
        }
        let (held, failed) = (self.holding(), self.failed());
        let undecided = |t: &Tally| (t.word == Decision::Undecided).then_some(t.rate);
        match (held, failed) {
            (None, None) => Some(self.first.clamp(self.least, self.most)),
            (Some(h), None) if h.rate >= self.most => undecided(h),
            (Some(h), None) => Some(self.rounded(h.rate * self.step)),
            (None, Some(f)) if f.rate <= self.least => None,
            (None, Some(f)) => Some(self.rounded(f.rate / self.step)),
            (Some(h), Some(f)) => {
                let middle = self.rounded((h.rate * f.rate).sqrt());
                if f.rate > h.rate * self.near && h.rate < middle && middle < f.rate {
                    return Some(middle);
                }
                undecided(h).or(f.again.is_none().then_some(f.rate))
            }
        }
    }

    /// Records the verdict of the trial at [`Highest::next`].
    pub fn tell(&mut self, held: bool) {
        let Some(rate) = self.next() else { return };
        let rising = self.failed().is_none();
        let bracket = rising || self.holding().is_none();
        let at = self.tallies.partition_point(|t| t.rate < rate);
        if self.tallies.get(at).is_none_or(|t| t.rate != rate) {
            self.tallies.insert(at, Tally::at(rate));
        }
        let tally = &mut self.tallies[at];
        tally.add(held);
        tally.passed |= rising && held;
        if bracket && (tally.passed || tally.word != Decision::Undecided) {
            self.step = (self.step * self.step).min(LARGEST_STEP.max(self.step));
        }
    }

    /// The highest certified rate, if any.
    pub fn found(&self) -> Option<f64> {
        let certified = |t: &&Tally| t.word == Decision::Certified;
        self.tallies.iter().rev().find(certified).map(|t| t.rate)
    }

    /// The lowest refuted rate.
    pub fn failed(&self) -> Option<&Tally> {
        self.tallies.iter().find(|t| t.word == Decision::Refuted)
    }

    /// The lower end of the bracket: the highest rate below all refuted ones that holds.
    fn holding(&self) -> Option<&Tally> {
        let holds = |t: &&Tally| t.word == Decision::Certified || t.passed;
        let below = self
            .tallies
            .iter()
            .take_while(|t| t.word != Decision::Refuted);
        below.filter(holds).last()
    }

    /// Brings a rate within the bounds, with four significant digits.
    fn rounded(&self, rate: f64) -> f64 {
        four_figures(rate).clamp(self.least, self.most)
    }
}

/// Rounds a rate to four significant digits: short as text, and unchanged when read back.
pub(crate) fn four_figures(rate: f64) -> f64 {
    format!("{rate:.3e}").parse().unwrap_or(rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs a search on a simulated system and returns the number of trials.
    fn run(search: &mut Highest, mut holds: impl FnMut(f64) -> bool) -> usize {
        let mut trials = 0;
        while let Some(rate) = search.next() {
            trials += 1;
            assert!(trials < 600, "no end: {search:?}");
            search.tell(holds(rate));
        }
        trials
    }

    proptest! {
        #[test]
        fn the_limit_is_found_from_any_first_rate(
            limit in 1e-2..1e7_f64, first in 1e-2..1e7_f64, step in 1.05..2.0_f64,
            near in 1.01..1.3_f64,
        ) {
            let mut search = Highest { step, near, ..Highest::new(first) };
            let trials = run(&mut search, |rate| rate <= limit);
            let found = search.found().expect("a rate");
            prop_assert!(found <= limit && limit <= found * near * 1.001, "{found} of {limit}");
            prop_assert!(trials < 200, "{trials} trials");
        }

        #[test]
        fn bounds_end_a_search_and_no_rate_lies_beyond_them(
            limit in 1.0..1e6_f64, least in 10.0..1e3_f64, factor in 1.0..100.0_f64,
        ) {
            let most = least * factor;
            let mut search = Highest { least, most, ..Highest::new(100.0) };
            run(&mut search, |rate| {
                assert!((least..=most).contains(&rate), "{rate}");
                rate <= limit
            });
            prop_assert_eq!(search.found().is_none(), limit < least);
            prop_assert!(limit < most || search.found() == Some(most));
        }

        #[test]
        fn a_disturbance_of_three_trials_costs_trials_and_not_the_result(at in 0..30_usize) {
            let mut n = 0;
            let mut search = Highest::new(100.0);
            run(&mut search, |rate| {
                n += 1;
                rate <= 1000.0 && !(at..at + 3).contains(&n)
            });
            let found = search.found().expect("a rate");
            prop_assert!((1000.0 / 1.03..=1000.0).contains(&found), "{found}: {search:?}");
        }
    }

    #[test]
    fn one_trial_that_holds_is_enough_to_go_up_and_not_for_the_result() {
        let mut search = Highest {
            most: 16.0,
            ..Highest::new(8.0)
        };
        search.tell(true);
        assert_eq!((search.next(), search.found()), (Some(16.0), None));
        (0..4).for_each(|_| search.tell(true));
        assert_eq!(search.found(), None);
        search.tell(true);
        assert_eq!((search.next(), search.found()), (None, Some(16.0)));
    }
}
