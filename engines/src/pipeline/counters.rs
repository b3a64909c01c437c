//! Counters of the pipeline.

use record::BatchSizes;

use crate::{BatchCounts, SizeCounts};

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
    /// Batches by size.
    pub batch_sizes: BatchSizes,
}

impl Counters {
    /// The counters of a worker that runs batches of up to `max_batch` samples, at least 1.
    pub(super) fn new(max_batch: usize) -> Self {
        Counters {
            batch_sizes: BatchSizes::new(max_batch),
            ..Counters::default()
        }
    }

    /// The counters of batches that NIC threads answered inline.
    pub(super) fn inline(counts: &SizeCounts) -> Self {
        let batch_sizes = counts.sizes();
        Counters {
            batches: batch_sizes.batches(),
            samples: batch_sizes.samples(),
            batch_sizes,
            ..Counters::default()
        }
    }

    pub(super) fn add_batch(&mut self, samples: usize, ns: u64, counts: BatchCounts) {
        self.busy_ns += ns;
        self.samples += samples as u64;
        self.copies += counts.copies;
        self.copied_bytes += counts.copied_bytes;
        self.batches += 1;
        self.batch_sizes.record(samples);
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
        self.batch_sizes.merge(&o.batch_sizes);
    }
}
