//! Whether figures differ by more than noise: 95 % intervals of a ratio by batch means.
//!
//! The values of a group are those of its runs or, of a single run, those of its batches. A batch
//! is neighbouring ticks, since these are correlated.

use record::{RunFolder, timeline::Tick};

/// Number of batches of a run; a run with fewer ticks has none.
pub const BATCHES: usize = 10;
/// 97.5th percentile of Student's t by degrees of freedom, from 1 on.
const STUDENT: [f64; 10] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];

/// The batches of a run's ticks, of nearly equal length; `None` if the run has too few ticks.
pub fn batches(run: &RunFolder) -> Option<Vec<&[Tick]>> {
    let ticks = &run.timeline.as_ref()?.ticks;
    let cut = |i: usize| i * ticks.len() / BATCHES;
    let batch = |i: usize| &ticks[cut(i)..cut(i + 1)];
    (ticks.len() >= BATCHES).then(|| (0..BATCHES).map(batch).collect())
}

/// Squared standard error of the mean of the logarithms; `None` without two positive values.
fn squared_error(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let logarithms = || values.iter().map(|v| v.ln());
    let mean = logarithms().sum::<f64>() / n;
    let squares = logarithms().map(|v| (v - mean).powi(2)).sum::<f64>();
    Some(squares / (n - 1.0) / n).filter(|error| error.is_finite())
}

/// The interval of the ratio between two groups whose figures have the exact `ratio`.
pub fn interval(ratio: f64, was: &[f64], is: &[f64]) -> Option<(f64, f64)> {
    let error = squared_error(was)? + squared_error(is)?;
    // Each has two values or more.
    let t = STUDENT.get(was.len() + is.len() - 3).unwrap_or(&2.1);
    let apart = (t * error.sqrt()).exp();
    Some((ratio / apart, ratio * apart))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_the_truth_and_repetitions_that_differ_widen_it() {
        let near = interval(0.9, &[100.0, 101.0, 99.0], &[90.0, 91.0, 89.0]).expect("six values");
        assert!(near.0 > 0.85 && near.1 < 0.95, "{near:?}");
        let far = interval(0.9, &[100.0, 140.0, 80.0], &[90.0, 91.0, 89.0]).expect("six values");
        assert!(far.0 < near.0 && far.1 > 1.0, "{far:?}");
        for few in [&[100.0][..], &[0.0, 1.0], &[]] {
            assert_eq!(interval(1.0, few, &[90.0, 91.0]), None, "{few:?}");
        }
    }
}
