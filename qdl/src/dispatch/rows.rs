//! A FIFO queue of samples that adds and removes several samples under one lock.
//!
//! Samples take the lock once per doorbell; a sample that the issuing thread posts takes none. The
//! lock is held while at most [`BURST`] samples are copied, which costs less than claiming them one
//! by one. A whole row is moved without a copy, and is filled before the lock is taken.

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{Sample, end::BURST};

/// Empty rows kept for threads that push few samples at a time.
const SPARE: usize = 4;

#[derive(Debug, Default)]
struct Row {
    samples: Vec<Sample>,
    /// Samples before this index have been taken.
    from: usize,
}

#[derive(Debug, Default)]
struct Inner {
    rows: VecDeque<Row>,
    spare: Vec<Vec<Sample>>,
}

/// A FIFO queue of samples in rows.
#[derive(Debug, Default)]
pub(super) struct Rows(Mutex<Inner>);

impl Inner {
    /// Appends a sample.
    fn push(&mut self, sample: Sample) {
        match self.rows.back_mut() {
            Some(row) if row.samples.len() < row.samples.capacity().min(BURST) => {
                row.samples.push(sample);
            }
            _ => {
                let spare = self.spare.pop();
                let mut samples = spare.unwrap_or_else(|| Vec::with_capacity(BURST));
                samples.push(sample);
                self.rows.push_back(Row { samples, from: 0 });
            }
        }
    }

    /// Removes the first row, whose samples have been taken. Returns its memory unless it is kept.
    fn drop_first(&mut self) -> Option<Vec<Sample>> {
        let mut empty = self.rows.pop_front()?.samples;
        if empty.capacity() < BURST || self.spare.len() >= SPARE {
            return Some(empty);
        }
        empty.clear();
        self.spare.push(empty);
        None
    }
}

impl Rows {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends samples, one row at a time. Other threads may take the first rows before the last
    /// are pushed.
    pub fn push(&self, mut samples: impl ExactSizeIterator<Item = Sample>) {
        if samples.len() > BURST {
            let rows = samples.len().div_ceil(BURST);
            self.lock().rows.reserve(rows);
        }
        while samples.len() >= BURST {
            let mut row = Vec::with_capacity(BURST);
            row.extend(samples.by_ref().take(BURST));
            self.lock().rows.push_back(Row {
                samples: row,
                from: 0,
            });
        }
        if samples.len() > 0 {
            let mut inner = self.lock();
            samples.for_each(|s| inner.push(s));
        }
    }

    /// Takes the first sample.
    pub fn pop(&self) -> Option<Sample> {
        let mut inner = self.lock();
        let row = inner.rows.front_mut()?;
        let sample = row.samples.get(row.from).copied();
        row.from += 1;
        if row.from >= row.samples.len() {
            inner.drop_first();
        }
        sample
    }

    /// Puts samples back in front of the first.
    pub fn put_back(&self, samples: &[Sample]) {
        if !samples.is_empty() {
            self.lock().rows.push_front(Row {
                samples: samples.to_vec(),
                from: 0,
            });
        }
    }

    /// Takes up to `most` samples, and at most one row, in place of the contents of `taken`.
    pub fn take(&self, most: usize, taken: &mut Vec<Sample>) {
        taken.clear();
        let mut inner = self.lock();
        let Some(row) = inner.rows.front_mut() else {
            return;
        };
        let left = row.samples.len() - row.from;
        let n = left.min(most);
        if row.from == 0 && n == left {
            mem::swap(taken, &mut row.samples);
        } else {
            taken.extend_from_slice(&row.samples[row.from..row.from + n]);
        }
        row.from += n;
        if n < left {
            return;
        }
        let empty = inner.drop_first();
        drop(inner);
        drop(empty);
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use fabric::SourceId;

    fn samples(ids: std::ops::Range<u64>) -> Vec<Sample> {
        ids.map(|id| Sample {
            id,
            index: id,
            source: SourceId(0),
            offset: 0,
            len: 1,
            issued_ns: 1,
            first: None,
            tries: Default::default(),
        })
        .collect()
    }

    proptest! {
        /// Each step: samples pushed, samples taken next, and samples of those put back.
        #[test]
        fn samples_come_out_once_and_in_their_order(
            steps in prop::collection::vec((0u64..200, 0usize..80, 0usize..3), 1..60),
        ) {
            let rows = Rows::default();
            let (mut pushed, mut came) = (0, 0);
            let mut taken = Vec::new();
            for (n, most, back) in steps {
                rows.push(samples(pushed..pushed + n).into_iter());
                pushed += n;
                rows.take(most, &mut taken);
                prop_assert!(taken.len() <= most.min(BURST));
                prop_assert!(most == 0 || came == pushed || !taken.is_empty());
                let used = taken.len().saturating_sub(back);
                rows.put_back(&taken[used..]);
                for s in &taken[..used] {
                    prop_assert_eq!(s.id, came);
                    came += 1;
                }
            }
            while came < pushed {
                rows.take(BURST, &mut taken);
                prop_assert!(!taken.is_empty());
                for s in &taken {
                    prop_assert_eq!(s.id, came);
                    came += 1;
                }
            }
            rows.take(BURST, &mut taken);
            prop_assert!(taken.is_empty());
        }
    }
}
