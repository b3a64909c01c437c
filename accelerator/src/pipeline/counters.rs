//! Counters of the pipeline.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::engine::BatchCounts;

/// Counts of a worker or a pipeline since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches run. If the engine answers inline, the samples of one NIC poll count as batches of
    /// at most `max_batch`. 0 for an engine that batches by itself.
    pub batches: u64,
    /// Samples answered.
    pub samples: u64,
    /// Tokens of all answers; 0 if the engine does not count tokens.
    pub tokens: u64,
    /// Tokens made, those of unfinished answers included; 0 if the engine does not count tokens.
    pub made: u64,
    /// Copies of inputs into memory that the engine reads.
    pub copies: u64,
    /// Bytes of these copies of inputs.
    pub copied_bytes: u64,
    /// Nanoseconds that all workers spent in batches.
    pub busy_ns: u64,
    /// Batches by size: element `n` counts batches of `n` samples.
    pub batch_sizes: Vec<u64>,
}

impl Counters {
    /// The counters of a worker that runs batches of up to `max_batch` samples, at least 1.
    pub(super) fn new(max_batch: usize) -> Self {
        Counters {
            batch_sizes: vec![0; max_batch + 1],
            ..Counters::default()
        }
    }

    pub(super) fn add_batch(&mut self, samples: usize, ns: u64, counts: BatchCounts) {
        self.busy_ns += ns;
        self.samples += samples as u64;
        self.copies += counts.copies;
        self.copied_bytes += counts.copied_bytes;
        self.batches += 1;
        let last = self.batch_sizes.len() - 1;
        self.batch_sizes[samples.min(last)] += 1;
    }

    /// Adds the counters of another worker or pipeline.
    pub fn add(&mut self, o: &Counters) {
        self.batches += o.batches;
        self.samples += o.samples;
        self.tokens += o.tokens;
        self.made += o.made;
        self.copies += o.copies;
        self.copied_bytes += o.copied_bytes;
        self.busy_ns += o.busy_ns;
        if self.batch_sizes.len() < o.batch_sizes.len() {
            self.batch_sizes.resize(o.batch_sizes.len(), 0);
        }
        for (sum, n) in self.batch_sizes.iter_mut().zip(&o.batch_sizes) {
            *sum += n;
        }
    }
}

/// Number of batches of each size that NIC threads answered inline. All NIC threads share the
/// counts and never wait for each other.
pub(super) struct InlineCounts(Box<[AtomicU64]>);

impl InlineCounts {
    /// The counts of batches of up to `max_batch` samples, at least 1.
    pub fn new(max_batch: usize) -> Self {
        InlineCounts((0..=max_batch).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts the samples of one NIC poll. More than `max_batch` samples count as several batches.
    pub fn add(&self, samples: usize) {
        let most = self.0.len() - 1;
        let (whole, rest) = (samples / most, samples % most);
        if whole > 0 {
            self.0[most].fetch_add(whole as u64, Relaxed);
        }
        if rest > 0 {
            self.0[rest].fetch_add(1, Relaxed);
        }
    }

    pub fn counters(&self) -> Counters {
        let batch_sizes: Vec<u64> = self.0.iter().map(|n| n.load(Relaxed)).collect();
        Counters {
            batches: batch_sizes.iter().sum(),
            samples: batch_sizes.iter().zip(0..).map(|(n, size)| n * size).sum(),
            batch_sizes,
            ..Counters::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sample_answered_inline_is_missing_from_the_sizes() {
        let counts = InlineCounts::new(8);
        [1, 7, 8, 9, 300].iter().for_each(|n| counts.add(*n));
        let sum = counts.counters();
        assert_eq!((sum.samples, sum.batches), (325, 43));
        assert_eq!(sum.batch_sizes, [0, 2, 0, 0, 1, 0, 0, 1, 39]);
    }
}
