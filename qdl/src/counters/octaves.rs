//! Coarse histograms: counts of times by octave, which other threads read during a run.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use record::{Stage, TokenTime};

use super::values::OCTAVES;

/// Number of times: those of all samples, then those of answers in tokens.
pub(super) const TIMES: usize = Stage::COUNT + TokenTime::COUNT;

/// Returns the key of each time, in the order of the indexes.
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    let stages = Stage::ALL.iter().map(|s| s.key());
    stages.chain(TokenTime::ALL.iter().map(|t| t.key()))
}

/// Counts of times by octave, with their exact sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Octaves {
    /// Number of times below 2^10 ns, then from 2^(9+i) up to 2^(10+i) ns for each index i.
    pub counts: [u64; OCTAVES],
    /// Sum of the times, in nanoseconds.
    pub sum_ns: u64,
}

impl Default for Octaves {
    fn default() -> Self {
        Octaves {
            counts: [0; OCTAVES],
            sum_ns: 0,
        }
    }
}

impl Octaves {
    /// Returns the end of the octave of index `i`, in nanoseconds.
    pub fn end_ns(i: usize) -> u64 {
        1 << (10 + i)
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds the times of `other`.
    pub(super) fn add(&mut self, other: &Octaves) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.sum_ns += other.sum_ns;
    }
}

/// Octaves that one thread writes and others read without a lock.
#[derive(Debug)]
pub(super) struct SharedOctaves {
    counts: [AtomicU64; OCTAVES],
    sum_ns: AtomicU64,
}

impl Default for SharedOctaves {
    fn default() -> Self {
        SharedOctaves {
            counts: [const { AtomicU64::new(0) }; OCTAVES],
            sum_ns: AtomicU64::new(0),
        }
    }
}

impl SharedOctaves {
    pub(super) fn store(&self, now: &Octaves) {
        for (shared, n) in self.counts.iter().zip(&now.counts) {
            shared.store(*n, Relaxed);
        }
        self.sum_ns.store(now.sum_ns, Relaxed);
    }

    pub(super) fn load(&self) -> Octaves {
        Octaves {
            counts: self.counts.each_ref().map(|n| n.load(Relaxed)),
            sum_ns: self.sum_ns.load(Relaxed),
        }
    }
}
