//! Wald's sequential test: is VALID at this rate a coin of 0.9, or one of 0.5?

/// The chance of VALID that is not good enough.
const POOR: f64 = 0.5;
/// The chance that is good enough.
const GOOD: f64 = 0.9;
/// The rate of either error.
const ERROR: f64 = 0.05;

/// Five straight successes weigh (0.9 / 0.5)^5 = 18.9 to 1, where 5 % asks for 19 to 1. They are
/// enough: Wald's bounds are approximate by more than that.
const NEARLY: f64 = 0.01;
/// Trials after which an undecided rate counts as refuted (a truncated test).
const MOST: usize = 30;

/// What the trials at one rate decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Word {
    /// The rate holds.
    Certified,
    /// It does not.
    Refuted,
    /// More trials are needed.
    #[default]
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

/// Judges trials in their order: the first decision stays.
pub fn judge(trials: &[bool]) -> Word {
    let enough = ((1.0 - ERROR) / ERROR).ln() - NEARLY;
    let mut weight = 0.0;
    for valid in trials {
        weight += if *valid {
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
    if trials.len() < MOST {
        Word::Undecided
    } else {
        Word::Refuted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_straight_successes_or_two_straight_failures_decide() {
        assert_eq!(judge(&[]), Word::Undecided);
        assert_eq!(judge(&[true; 4]), Word::Undecided);
        assert_eq!(judge(&[true; 5]), Word::Certified);
        assert_eq!(judge(&[false]), Word::Undecided);
        assert_eq!(judge(&[false, false]), Word::Refuted);
        let after_a_failure = [&[false], [true; 8].as_slice()].concat();
        assert_eq!(judge(&after_a_failure[..8]), Word::Undecided);
        assert_eq!(judge(&after_a_failure), Word::Certified);
        let three_of_four: Vec<bool> = (0..MOST).map(|i| i % 4 != 0).collect();
        assert_eq!(judge(&three_of_four), Word::Refuted);
    }

    #[test]
    fn it_errs_as_often_as_it_may() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut often = |chance: f64, word: Word| {
            let mut is = || {
                let coins: Vec<bool> = (0..MOST).map(|_| random.f64() < chance).collect();
                judge(&coins) == word
            };
            (0..4000).filter(|_| is()).count() as f64 / 4000.0
        };
        assert!(often(POOR, Word::Certified) < 0.07);
        assert!(often(GOOD, Word::Refuted) < 0.07);
        assert!(often(0.97, Word::Certified) > 0.98);
    }
}
