//! Whether margins have moved since the session began.
//!
//! Two things are looked at: the anchors, which are the same two rates again and again, and what
//! all trials near the limit are above the fit, in the order in which they ran.

use crate::fit::{median, scale};

/// A move of the margins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// The first that is moved.
    pub at: usize,
    /// By how much.
    pub by: f64,
    /// The same in its own standard errors.
    pub weight: f64,
}

/// How many errors a shift has to be: of all the places where one may be looked for, chance alone
/// finds one so large in few sessions of a hundred.
pub const WEIGHT: f64 = 4.0;
/// How many it has still to be when more trials have been made because of it.
pub const STILL: f64 = 3.0;

/// Looks for the place at which values have moved the most, with `least` of them on either side.
/// It is one where it is more than so many `errors`. Values far from all others count as if they
/// were nearer, and their deviation as `floor` at least.
pub fn shift(values: &[f64], least: usize, floor: f64, errors: f64) -> Option<Shift> {
    let n = values.len();
    if n < 2 * least {
        return None;
    }
    let middle = median(&mut values.to_vec());
    let from_middle: Vec<f64> = values.iter().map(|v| v - middle).collect();
    // Of differences of neighbours, so that the shift itself does not count.
    let steps: Vec<f64> = from_middle
        .windows(2)
        .map(|w| (w[1] - w[0]) / 2.0_f64.sqrt())
        .collect();
    let deviation = scale(&steps).max(floor).max(1e-9);
    let clipped: Vec<f64> = from_middle
        .iter()
        .map(|v| v.clamp(-6.0 * deviation, 6.0 * deviation))
        .collect();
    let mut best: Option<Shift> = None;
    for at in least..=n - least {
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        let (before, after) = (&clipped[..at], &clipped[at..]);
        let by = mean(after) - mean(before);
        // Each side's own scatter, where that is larger.
        let own = |part: &[f64]| {
            let m = mean(part);
            part.iter().map(|v| (v - m).powi(2)).sum::<f64>()
        };
        let within = ((own(before) + own(after)) / (n as f64 - 2.0).max(1.0)).sqrt();
        let error =
            deviation.max(within) * (1.0 / before.len() as f64 + 1.0 / after.len() as f64).sqrt();
        let weight = by.abs() / error;
        if weight > errors && best.is_none_or(|b| weight > b.weight) {
            best = Some(Shift { at, by, weight });
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_step_is_found_and_its_place() {
        let mut random = Random(3);
        let values: Vec<f64> = (0..20)
            .map(|i| 0.1 * random.normal() + if i < 12 { 0.0 } else { 0.5 })
            .collect();
        let found = shift(&values, 3, 0.0, WEIGHT).expect("a step of five deviations");
        assert!((11..=13).contains(&found.at), "{found:?}");
        assert!((0.3..0.7).contains(&found.by), "{found:?}");
    }

    #[test]
    fn chance_alone_is_seldom_a_shift() {
        let mut random = Random(4);
        let mut found = 0;
        for _ in 0..500 {
            let values: Vec<f64> = (0..40).map(|_| random.normal()).collect();
            found += i32::from(shift(&values, 4, 0.0, WEIGHT).is_some());
        }
        assert!(found <= 10, "{found} of 500");
    }

    #[test]
    fn one_odd_value_is_no_shift() {
        let mut values: Vec<f64> = (0..12).map(|i| f64::from(i % 3) * 0.01).collect();
        values[11] = 4.0;
        assert_eq!(shift(&values, 2, 0.0, WEIGHT), None);
    }
}
