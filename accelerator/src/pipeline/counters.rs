//! Counters of the pipeline.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;
use serde::Serialize;

use crate::engine::{BatchCounts, Decompressed};

/// Counts since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Batches run. Where the engine answers inline: the samples of each poll of a NIC, in pieces
    /// of at most `max_batch`. 0 for an engine that batches by itself.
    pub batches: u64,
    /// Samples answered.
    pub samples: u64,
    /// Tokens of those answers, where the engine counts tokens.
    pub tokens: u64,
    /// Writes of those answers, where an answer may leave in parts.
    pub parts: u64,
    /// Copies of inputs into memory that the engine reads.
    pub copies: u64,
    /// Bytes of those copies.
    pub copied_bytes: u64,
    /// Wake-ups of sleeping workers.
    pub wakeups: u64,
    /// Time of all workers in batches, decompression included, in nanoseconds.
    pub busy_ns: u64,
    /// Decompression: samples, bytes and time.
    pub decompressed: Decompressed,
    /// Batches by size: element `n` counts batches of `n` samples.
    pub batch_sizes: Vec<u64>,
}

impl Counters {
    /// Adds the counters of another pipeline.
    pub fn add(&mut self, o: &Counters) {
        self.batches += o.batches;
        self.samples += o.samples;
        self.tokens += o.tokens;
        self.parts += o.parts;
        self.copies += o.copies;
        self.copied_bytes += o.copied_bytes;
        self.wakeups += o.wakeups;
        self.busy_ns += o.busy_ns;
        self.decompressed.add(&o.decompressed);
        if self.batch_sizes.len() < o.batch_sizes.len() {
            self.batch_sizes.resize(o.batch_sizes.len(), 0);
        }
        for (sum, n) in self.batch_sizes.iter_mut().zip(&o.batch_sizes) {
            *sum += n;
        }
    }
}

/// The counters of one worker: the worker writes, any thread reads.
#[derive(Debug)]
pub(super) struct WorkerCounters {
    samples: AtomicU64,
    copies: AtomicU64,
    copied_bytes: AtomicU64,
    busy_ns: AtomicU64,
    decompressed: [AtomicU64; 4],
    sizes: Box<[AtomicU64]>,
}

impl WorkerCounters {
    pub fn new(max_batch: usize) -> CachePadded<Self> {
        CachePadded::new(WorkerCounters {
            samples: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            decompressed: Default::default(),
            sizes: (0..=max_batch).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// Counts one batch that took `ns` nanoseconds. One call per batch, so atomic additions are
    /// cheap enough.
    pub fn batch(&self, samples: usize, ns: u64, counts: BatchCounts) {
        self.busy_ns.fetch_add(ns, Relaxed);
        self.samples.fetch_add(samples as u64, Relaxed);
        if counts.copies > 0 {
            self.copies.fetch_add(counts.copies, Relaxed);
            self.copied_bytes.fetch_add(counts.copied_bytes, Relaxed);
        }
        let Decompressed {
            samples: whole,
            from_bytes,
            to_bytes,
            ns: took,
        } = counts.decompressed;
        if whole > 0 {
            let counts = [whole, from_bytes, to_bytes, took];
            for (sum, n) in self.decompressed.iter().zip(counts) {
                sum.fetch_add(n, Relaxed);
            }
        }
        let last = self.sizes.len() - 1;
        self.sizes[samples.min(last)].fetch_add(1, Relaxed);
    }

    /// Counts samples that a NIC thread answered inline. More than `max_batch` samples count as
    /// several batches.
    pub fn inline(&self, samples: usize) {
        let most = (self.sizes.len() - 1).max(1);
        let (whole, rest) = (samples / most, samples % most);
        self.samples.fetch_add(samples as u64, Relaxed);
        if whole > 0
            && let Some(size) = self.sizes.get(most)
        {
            size.fetch_add(whole as u64, Relaxed);
        }
        if rest > 0
            && let Some(size) = self.sizes.get(rest)
        {
            size.fetch_add(1, Relaxed);
        }
    }

    /// Adds the counts of this worker to `sum`.
    pub fn add_to(&self, sum: &mut Counters) {
        sum.samples += self.samples.load(Relaxed);
        sum.copies += self.copies.load(Relaxed);
        sum.copied_bytes += self.copied_bytes.load(Relaxed);
        sum.busy_ns += self.busy_ns.load(Relaxed);
        let [samples, from_bytes, to_bytes, ns] =
            self.decompressed.each_ref().map(|n| n.load(Relaxed));
        sum.decompressed.add(&Decompressed {
            samples,
            from_bytes,
            to_bytes,
            ns,
        });
        if sum.batch_sizes.len() < self.sizes.len() {
            sum.batch_sizes.resize(self.sizes.len(), 0);
        }
        for (sum, n) in sum.batch_sizes.iter_mut().zip(&self.sizes) {
            *sum += n.load(Relaxed);
        }
        sum.batches = sum.batch_sizes.iter().sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sample_answered_inline_is_missing_from_the_sizes() {
        let cell = WorkerCounters::new(8);
        let bursts = [1, 7, 8, 9, 300];
        bursts.iter().for_each(|n| cell.inline(*n));
        let mut sum = Counters::default();
        cell.add_to(&mut sum);
        let by_size: u64 = sum
            .batch_sizes
            .iter()
            .zip(0..)
            .map(|(n, size)| n * size)
            .sum();
        assert_eq!((sum.samples, by_size), (325, 325));
        assert_eq!(sum.batches, sum.batch_sizes.iter().sum::<u64>());
    }
}
