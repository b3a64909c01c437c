//! Histograms: counts of values in buckets of 3 significant figures.

use hdrhistogram::Histogram;
use record::StageRow;

/// Upper bound of the histograms in nanoseconds: one hour. A longer time counts as one hour;
/// maximum and mean stay exact.
pub(super) const LONGEST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// Below 2^11 ns each bucket holds one value; each octave above has 2^10 buckets. This gives 3
/// significant figures, with the buckets of an [`hdrhistogram`] of the same bounds.
const FINE: u32 = 11;
const HALF: usize = 1 << (FINE - 1);
const BUCKETS: usize = bucket(LONGEST_NS) + 1;

/// Returns the bucket of a time in a few instructions: every stage of every sample needs one.
const fn bucket(ns: u64) -> usize {
    let ns = if ns > LONGEST_NS { LONGEST_NS } else { ns };
    let shift = u64::BITS - FINE - (ns | (2 * HALF as u64 - 1)).leading_zeros();
    shift as usize * HALF + (ns >> shift) as usize
}

fn times_of(bucket: usize) -> (u64, u64) {
    let shift = (bucket / HALF).saturating_sub(1);
    let shortest = ((bucket - shift * HALF) as u64) << shift;
    (shortest, shortest + ((1 << shift) - 1))
}

/// Bound of the first of [`Octaves`], as a power of 2 in nanoseconds.
const FIRST: usize = 12;

/// Counts of times by octave: below 2^12 ns, below 2^13 ns, and so on; and their exact sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Octaves(pub(super) [u64; 32]);

impl Octaves {
    /// Returns the bound of each octave in nanoseconds, with its count.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> {
        (FIRST..).map(|power| 1 << power).zip(self.0).take(31)
    }

    /// Returns the sum of the times, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.0[31]
    }

    pub(super) fn add(&mut self, other: &Octaves) {
        let cells = self.0.iter_mut().zip(other.0);
        cells.for_each(|(mine, theirs)| *mine += theirs);
    }
}

/// Counts of values in buckets, with exact sum and maximum. Allocates memory only in `new`.
#[derive(Clone, Debug)]
pub(super) struct Values {
    counts: Box<[u64]>,
    sum: u128,
    max: u64,
}

impl Values {
    pub(super) fn new() -> Self {
        Values {
            counts: vec![0; BUCKETS].into(),
            sum: 0,
            max: 0,
        }
    }

    pub(super) fn record(&mut self, value: u64, n: u64) {
        self.counts[bucket(value)] += n;
        self.sum += u128::from(value) * u128::from(n);
        self.max = self.max.max(value);
    }

    pub(super) fn merge(&mut self, other: &Values) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts.iter()) {
            *mine += theirs;
        }
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(super) fn sum(&self) -> u128 {
        self.sum
    }

    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// Sums the counts of times by octave. Reads up to 270 KB and allocates nothing.
    pub(super) fn octaves(&self) -> Octaves {
        let mut octaves = Octaves::default();
        // Each octave has HALF buckets; that below 2^FINE ns has twice as many.
        let used = self.counts[..=bucket(self.max)].chunks(HALF);
        for (i, counts) in used.enumerate() {
            let power = i + FINE as usize - 1;
            octaves.0[power.saturating_sub(FIRST)] += counts.iter().sum::<u64>();
        }
        octaves.0[31] = u64::try_from(self.sum).unwrap_or(u64::MAX);
        octaves
    }

    /// Converts the counts to an `hdrhistogram`, for other tools.
    pub(super) fn histogram(&self) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)
            .expect("1 ns to 1 h at 3 figures is a valid range");
        histogram.auto(false);
        for (i, n) in self.counts.iter().enumerate() {
            if *n > 0 {
                let (shortest, _) = times_of(i);
                // `shortest` is at most the histogram's maximum, so recording succeeds.
                let _ = histogram.record_n(shortest, *n);
            }
        }
        histogram
    }

    /// Returns an upper estimate of a quantile of `count` values; values that are not recorded here
    /// count as the lowest. Reads up to 270 KB and allocates nothing.
    pub(super) fn quantile(&self, quantile: f64, count: u64) -> u64 {
        let rank = ((count as f64 * quantile).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        let met = self.counts.iter().position(|n| {
            seen += n;
            seen >= rank
        });
        met.map_or(0, |bucket| times_of(bucket).1).min(self.max)
    }

    /// Returns the mean of `count` values; values that are not recorded here count as 0.
    pub(super) fn mean(&self, count: u64) -> f64 {
        match count {
            0 => 0.0,
            n => self.sum as f64 / n as f64,
        }
    }

    /// Computes the figures of the values; `histogram` must hold all of them.
    pub(super) fn row(&self, histogram: &Histogram<u64>) -> StageRow {
        let [p50, p90, p99, p999] = quantiles(histogram, [500, 900, 990, 999]);
        let us = |ns: u64| ns.min(self.max) as f64 / 1000.0;
        StageRow {
            p50_us: us(p50),
            p90_us: us(p90),
            p99_us: us(p99),
            p999_us: us(p999),
            max_us: us(self.max),
            mean_us: self.mean(histogram.len()).round() / 1000.0,
            count: histogram.len(),
        }
    }
}

/// Returns the upper ends of the buckets that hold the samples at these ranks, which ascend and are
/// in thousandths. Integers avoid floating-point rounding: 99.9 % of 1000 samples is the 999th.
pub(super) fn quantiles<const N: usize>(
    histogram: &Histogram<u64>,
    thousandths: [u64; N],
) -> [u64; N] {
    let total = u128::from(histogram.len());
    let mut found = [0; N];
    let (mut next, mut seen) = (0, 0u128);
    for step in histogram.iter_recorded() {
        seen += u128::from(step.count_at_value());
        while next < N && seen * 1000 >= total * u128::from(thousandths[next]) {
            found[next] = step.value_iterated_to();
            next += 1;
        }
    }
    found
}
