//! Counts of the events that bring tokens of answers to the node.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use record::BatchSizes;

/// Events by their number of tokens. Threads count without waiting for each other.
#[derive(Debug)]
pub struct EventSizes(Box<[AtomicU64]>);

impl EventSizes {
    /// Empty counts, for answers of up to `most` tokens.
    pub fn new(most: usize) -> Self {
        let most = most.clamp(1, BatchSizes::LARGEST);
        EventSizes((0..=most).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts one event; none without tokens.
    pub(super) fn count(&self, tokens: usize) {
        if tokens > 0 {
            let last = self.0.len() - 1;
            self.0[tokens.min(last)].fetch_add(1, Relaxed);
        }
    }

    /// Tokens of all events so far.
    pub fn tokens(&self) -> u64 {
        let each = self.0.iter().zip(0..);
        each.map(|(n, size)| n.load(Relaxed) * size).sum()
    }

    /// The counts so far.
    pub fn sizes(&self) -> BatchSizes {
        let counts: Vec<u64> = self.0.iter().map(|n| n.load(Relaxed)).collect();
        BatchSizes::from_counts(&counts)
    }
}
