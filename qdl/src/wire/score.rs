//! A health score: an exact fraction in (0, 1].
//!
//! Scores are multiples of 1/65,536. Products of three scores fit in a `u64` without rounding. So
//! [`crate::rails`] computes exactly, and a list sorted by score has one order on every machine.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of steps in a score of 1.
const ONE: u32 = 1 << 16;

/// Health of a rail or of a node's interior, in (0, 1]; 1 is line rate with no queueing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Score(u32);

/// Error: a number is outside (0, 1].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{0} is no score: it must be above 0 and at most 1")]
pub struct NotAScore(pub f64);

impl Score {
    /// Full health.
    pub const ONE: Score = Score(ONE);
    /// The lowest score: 1/65,536.
    pub const MIN: Score = Score(1);

    /// Makes a score of `steps` times 1/65,536, clamped to the range.
    pub const fn from_steps(steps: u32) -> Score {
        if steps == 0 {
            Score::MIN
        } else if steps > ONE {
            Score::ONE
        } else {
            Score(steps)
        }
    }

    /// Returns the next lower score, clamped to the range; the lowest for NaN.
    pub fn from_f32(value: f32) -> Score {
        // The cast truncates, saturates, and maps NaN to zero.
        Score::from_steps((value * ONE as f32) as u32)
    }

    /// Returns the score as a number of steps of 1/65,536.
    pub const fn steps(self) -> u32 {
        self.0
    }

    pub(crate) fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(ONE)
    }

    pub(crate) fn as_f32(self) -> f32 {
        self.0 as f32 / ONE as f32
    }
}

impl TryFrom<f64> for Score {
    type Error = NotAScore;

    fn try_from(value: f64) -> Result<Self, NotAScore> {
        if value > 0.0 && value <= 1.0 {
            Ok(Score::from_steps((value * f64::from(ONE)).round() as u32))
        } else {
            Err(NotAScore(value))
        }
    }
}

impl From<Score> for f64 {
    fn from(score: Score) -> f64 {
        score.as_f64()
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.as_f64())
    }
}

impl fmt::Debug for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Score({:.5})", self.as_f64())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_out_of_range_is_refused_or_clamped() {
        for bad in [0.0, -0.5, 1.0001, f64::NAN, f64::INFINITY] {
            assert!(Score::try_from(bad).is_err(), "{bad}");
        }
        assert_eq!(Score::try_from(1e-9), Ok(Score::MIN));
        assert_eq!(Score::from_f32(f32::NAN), Score::MIN);
        assert_eq!(Score::from_f32(7.0), Score::ONE);
        assert_eq!(Score::from_f32(0.5).to_string(), "0.500");
    }

    proptest! {
        #[test]
        fn it_survives_json(steps in 1u32..=ONE) {
            let score = Score::from_steps(steps);
            let text = serde_json::to_string(&score).expect("a number");
            prop_assert_eq!(serde_json::from_str::<Score>(&text).expect("a score"), score);
        }
    }
}
