//! Wald's sequential test: is the probability of VALID at a rate 0.9 or 0.5?

/// The probability of VALID at which a rate must be refuted.
const POOR: f64 = 0.5;
/// The probability of VALID at which a rate must be certified.
const GOOD: f64 = 0.9;
/// The probability of either error.
const ERROR: f64 = 0.05;

/// Tolerance of the threshold: five successes in a row give odds of (0.9 / 0.5)^5 = 18.9, the
/// threshold is 19. Five suffice, because the error of Wald's bounds is larger than this tolerance.
const NEARLY: f64 = 0.01;
/// Number of trials after which an undecided rate is refuted (a truncated test).
const MOST: usize = 30;

/// The decision from the trials at one rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decision {
    /// The rate holds.
    Certified,
    /// The rate does not hold.
    Refuted,
    /// More trials are needed.
    #[default]
    Undecided,
}

impl Decision {
    /// The word in the page and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Decision::Certified => "certified",
            Decision::Refuted => "refuted",
            Decision::Undecided => "undecided",
        }
    }
}

/// Judges trials in their order. The first decision is final.
pub fn judge(trials: &[bool]) -> Decision {
    let enough = ((1.0 - ERROR) / ERROR).ln() - NEARLY;
    let mut weight = 0.0;
    for valid in trials {
        weight += if *valid {
            (GOOD / POOR).ln()
        } else {
            ((1.0 - GOOD) / (1.0 - POOR)).ln()
        };
        if weight >= enough {
            return Decision::Certified;
        }
        if weight <= -enough {
            return Decision::Refuted;
        }
    }
    if trials.len() < MOST {
        Decision::Undecided
    } else {
        Decision::Refuted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_straight_successes_or_two_straight_failures_decide() {
        assert_eq!(judge(&[]), Decision::Undecided);
        assert_eq!(judge(&[true; 4]), Decision::Undecided);
        assert_eq!(judge(&[true; 5]), Decision::Certified);
        assert_eq!(judge(&[false]), Decision::Undecided);
        assert_eq!(judge(&[false, false]), Decision::Refuted);
        let after_a_failure = [&[false], [true; 8].as_slice()].concat();
        assert_eq!(judge(&after_a_failure[..8]), Decision::Undecided);
        assert_eq!(judge(&after_a_failure), Decision::Certified);
        let three_of_four: Vec<bool> = (0..MOST).map(|i| i % 4 != 0).collect();
        assert_eq!(judge(&three_of_four), Decision::Refuted);
    }

    #[test]
    fn it_errs_as_often_as_it_may() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut often = |chance: f64, word: Decision| {
            let mut is = || {
                let coins: Vec<bool> = (0..MOST).map(|_| random.f64() < chance).collect();
                judge(&coins) == word
            };
            (0..4000).filter(|_| is()).count() as f64 / 4000.0
        };
        assert!(often(POOR, Decision::Certified) < 0.07);
        assert!(often(GOOD, Decision::Refuted) < 0.07);
        assert!(often(0.97, Decision::Certified) > 0.98);
    }
}
