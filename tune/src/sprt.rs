//! Wald's sequential test: is VALID at this rate a coin of 0.9, or one of 0.5?

/// The chance that is not good enough.
pub const POOR: f64 = 0.5;
/// The chance that is.
pub const GOOD: f64 = 0.9;
/// How often the test may err, either way.
pub const ERROR: f64 = 0.05;

/// Five straight successes weigh (0.9 / 0.5)^5 = 18.9 to 1, and 5 % asks for 19 to 1: they are
/// taken for enough, as Wald's bounds are approximate by more than that.
const NEARLY: f64 = 0.01;

/// What trials at one rate say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// VALID is as good as sure to come often enough.
    Certified,
    /// It is not.
    Refuted,
    /// More trials would have to tell.
    Undecided,
}

impl Word {
    /// As the page has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Word::Certified => "certified",
            Word::Refuted => "refuted",
            Word::Undecided => "undecided",
        }
    }
}

/// What so many VALID and INVALID trials say, in their order: the first word stays.
pub fn judge(trials: impl IntoIterator<Item = bool>) -> Word {
    let enough = ((1.0 - ERROR) / ERROR).ln() - NEARLY;
    let mut weight = 0.0;
    for valid in trials {
        weight += if valid {
            (GOOD / POOR).ln()
        } else {
            ((1.0 - GOOD) / (1.0 - POOR)).ln()
        };
        if weight >= enough {
            return Word::Certified;
        }
        if weight <= -enough {
            return Word::Refuted;
        }
    }
    Word::Undecided
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn five_straight_successes_or_two_straight_failures_decide() {
        assert_eq!(judge([true; 4]), Word::Undecided);
        assert_eq!(judge([true; 5]), Word::Certified);
        assert_eq!(judge([false]), Word::Undecided);
        assert_eq!(judge([false, false]), Word::Refuted);
        let one_failure =
            |successes| std::iter::once(false).chain([true; 9].into_iter().take(successes));
        assert_eq!(judge(one_failure(7)), Word::Undecided);
        assert_eq!(judge(one_failure(8)), Word::Certified);
        assert_eq!(judge([]), Word::Undecided);
    }

    #[test]
    fn it_errs_as_often_as_it_may() {
        let mut random = Random(1);
        let mut often = |chance: f64, word: Word| {
            let runs = 4000;
            let is = |_: &i32| {
                let coin = (0..200).map(|_| random.unit() < chance);
                judge(coin.collect::<Vec<_>>()) == word
            };
            (0..runs).filter(is).count() as f64 / f64::from(runs)
        };
        assert!(often(POOR, Word::Certified) < 0.07);
        assert!(often(GOOD, Word::Refuted) < 0.07);
        assert!(often(0.97, Word::Certified) > 0.98);
    }
}
