//! Counts by size that several threads add to: events by their tokens, inline batches by their
//! samples.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use record::BatchSizes;

/// Counts by size. Threads count without waiting for each other.
#[derive(Debug)]
pub struct SizeCounts(Box<[AtomicU64]>);

impl SizeCounts {
    /// Empty counts, for sizes from 1 to `largest`.
    pub fn new(largest: usize) -> Self {
        let largest = largest.clamp(1, BatchSizes::LARGEST);
        SizeCounts((0..=largest).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts one of this size; none of size 0. More than the largest size counts as several.
    pub(crate) fn add(&self, size: usize) {
        // Without a division for most events, of which a step has one for each sequence.
        if let Some(count) = self.0.get(size).filter(|_| size > 0) {
            count.fetch_add(1, Relaxed);
            return;
        }
        let largest = self.0.len() - 1;
        let (whole, rest) = (size / largest, size % largest);
        if whole > 0 {
            self.0[largest].fetch_add(whole as u64, Relaxed);
        }
        if rest > 0 {
            self.0[rest].fetch_add(1, Relaxed);
        }
    }

    /// Sum of all sizes so far.
    pub fn sum(&self) -> u64 {
        let each = self.0.iter().zip(0..);
        each.map(|(n, size)| n.load(Relaxed) * size).sum()
    }

    /// The counts so far.
    pub fn sizes(&self) -> BatchSizes {
        let counts: Vec<u64> = self.0.iter().map(|n| n.load(Relaxed)).collect();
        BatchSizes::from_counts(&counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sample_is_missing_from_the_sizes() {
        let counts = SizeCounts::new(8);
        [1, 0, 7, 8, 9, 300].iter().for_each(|n| counts.add(*n));
        assert_eq!(counts.sum(), 325);
        let sizes: Vec<_> = counts.sizes().iter().collect();
        assert_eq!(sizes, [(1, 2), (4, 1), (7, 1), (8, 39)]);
    }
}
