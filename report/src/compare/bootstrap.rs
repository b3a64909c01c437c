//! Confidence intervals from resampled ticks (a block bootstrap). Ticks are drawn with replacement,
//! in blocks, because neighbouring ticks are correlated. With several runs of a setting, whole runs
//! are drawn first.
//!
//! The seed is fixed: the same runs give the same page.

use fastrand::Rng;
use record::{RunFolder, timeline::Timeline};

use crate::latency::Latencies;

pub const DRAWS: usize = 800;
const SEED: u64 = 0x5161_6c6c_7964_6e6f;

#[derive(Clone, Debug, Default)]
pub struct BootstrapDraw {
    pub latency: Latencies,
    pub per_s: f64,
}

impl BootstrapDraw {
    /// A quantile of the drawn latencies, in microseconds.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        self.latency.quantile_us(quantile).unwrap_or(f64::NAN)
    }
}

/// Minimum number of ticks of a run to draw from.
const LEAST: usize = 8;

/// Number of ticks in a block: the square root of the number of all ticks.
fn block(ticks: usize) -> usize {
    ((ticks as f64).sqrt().ceil() as usize).max(1)
}

/// Why these runs have no draws, and thus no intervals.
pub fn why_none(runs: &[&RunFolder]) -> &'static str {
    match runs.iter().all(|r| r.timeline.is_some()) {
        true => "not all of these runs have 8 ticks or more on their clock",
        false => "not all of these runs kept `timeline.json`",
    }
}

fn timelines<'a>(runs: &[&'a RunFolder]) -> Option<Vec<&'a Timeline>> {
    let all = runs.iter().map(|r| r.timeline.as_ref());
    let all: Vec<&Timeline> = all.collect::<Option<_>>()?;
    // A few ticks are not enough to draw from.
    all.iter().all(|t| t.ticks.len() >= LEAST).then_some(all)
}

fn once(timelines: &[&Timeline], rng: &mut Rng) -> BootstrapDraw {
    let (mut draw, mut completed, mut seconds) = (BootstrapDraw::default(), 0u64, 0.0);
    for _ in 0..timelines.len() {
        let timeline = timelines[rng.usize(..timelines.len())];
        let n = timeline.ticks.len();
        let block = block(n);
        let mut drawn = 0;
        while drawn < n {
            let from = rng.usize(..n);
            let length = block.min(n - drawn);
            for i in 0..length {
                // Wrap around the end, so that every tick is equally likely.
                let tick = &timeline.ticks[(from + i) % n];
                draw.latency.add(&tick.latency);
                completed += tick.completed;
            }
            drawn += length;
        }
        seconds += n as f64 * timeline.tick_ms as f64 / 1000.0;
    }
    draw.per_s = completed as f64 / f64::max(seconds, 1e-9);
    draw
}

/// [`DRAWS`] draws with seed `which`; `None` if a run has no timeline or too few ticks.
pub fn draws(runs: &[&RunFolder], which: u64) -> Option<Vec<BootstrapDraw>> {
    let timelines = timelines(runs)?;
    let mut rng = Rng::with_seed(SEED ^ which.wrapping_mul(0x9e37_79b9));
    Some((0..DRAWS).map(|_| once(&timelines, &mut rng)).collect())
}

/// [`DRAWS`] means of figures drawn with replacement, one for each run; `None` for fewer than two.
pub fn means(figures: &[f64], which: u64) -> Option<Vec<f64>> {
    let n = figures.len();
    let mut rng = Rng::with_seed(SEED ^ which.wrapping_mul(0x9e37_79b9));
    let mut mean = || (0..n).map(|_| figures[rng.usize(..n)]).sum::<f64>() / n as f64;
    (n > 1).then(|| (0..DRAWS).map(|_| mean()).collect())
}

/// The 2.5th percentile, the median, and the 97.5th percentile.
pub fn interval(mut values: Vec<f64>) -> Option<(f64, f64, f64)> {
    values.retain(|v| v.is_finite());
    if values.len() < DRAWS / 2 {
        return None;
    }
    values.sort_by(f64::total_cmp);
    let at = |q: f64| values[((values.len() - 1) as f64 * q).round() as usize];
    Some((at(0.025), at(0.5), at(0.975)))
}

#[cfg(test)]
mod tests {
    use record::{
        Summary,
        timeline::{Tick, latency_bucket},
    };

    use super::*;

    /// A run whose ticks' latencies vary by `spread` around `us`.
    fn run(us: f64, spread: f64, seed: u64) -> RunFolder {
        let mut rng = Rng::with_seed(seed);
        let mut tick = || {
            let mut all = Latencies::default();
            for _ in 0..200 {
                let share = rng.f64();
                let ns = us * (1.0 + spread * share) * 1_000.0;
                all.add(&[(latency_bucket(ns as u64), 1)]);
            }
            Tick {
                issued: 200,
                completed: 200,
                latency: all.filled().collect(),
                ..Tick::default()
            }
        };
        let timeline = Timeline {
            tick_ms: 100,
            ticks: (0..100).map(|_| tick()).collect(),
            ..Timeline::default()
        };
        RunFolder::of("x", &Summary::default(), Some(timeline))
    }

    fn median(runs: &[&RunFolder], which: u64) -> (f64, f64, f64) {
        let draws = draws(runs, which).expect("a timeline");
        interval(draws.iter().map(|d| d.quantile_us(0.5)).collect()).expect("an interval")
    }

    #[test]
    fn an_interval_holds_the_truth_and_is_the_same_each_time() {
        let one = run(100.0, 1.0, 1);
        let (low, middle, high) = median(&[&one], 0);
        assert!(low < 150.0 && 150.0 < high, "{low} {high}");
        assert!((middle / 150.0 - 1.0).abs() < 0.02 && high / low < 1.1);
        assert_eq!(median(&[&one], 0), (low, middle, high));
        let draws = draws(&[&one], 0).expect("a timeline");
        assert!(draws.iter().all(|d| (d.per_s - 2_000.0).abs() < 1e-6));
    }

    #[test]
    fn runs_that_differ_widen_the_interval() {
        let (slow, quick) = (run(140.0, 1.0, 1), run(100.0, 1.0, 2));
        let alone = median(&[&slow], 0);
        let both = median(&[&slow, &quick], 0);
        assert!(
            both.2 / both.0 > 1.2 * alone.2 / alone.0,
            "{both:?} {alone:?}"
        );
    }
}
